# Every target does its own set-up: a virtual environment, the pinned packages, CPU only. The environment is .venv, with
# PYTHON=python3.13 .venv-3.13, with CONSTRAINTS=oldest .venv-oldest; the lower ends of the ranges are for Python 3.11.
PYTHON ?= python3
CONSTRAINTS ?= newest
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# The references of the parity tests are gigabytes where PyTorch comes with CUDA: one Python has them, or who asks.
PARITY ?= $(filter 3.11-newest,$(VERSION)-$(CONSTRAINTS))
VENV := .venv$(if $(filter file,$(origin PYTHON)),,-$(VERSION))$(if $(filter newest,$(CONSTRAINTS)),,-$(CONSTRAINTS))
BIN := $(VENV)/bin
# A stamp and a python of this version: where `python3` has become another one, .venv is made anew.
INTERPRETER := $(BIN)/python$(VERSION)
TRAIN := $(VENV)/.train-$(VERSION)
CHECK := $(VENV)/.check-$(VERSION)
DEV := $(VENV)/.dev-$(VERSION)
DOCS := $(VENV)/.docs-$(VERSION)
BEAM := .venv-beam/.beam-$(VERSION)
# `make check AUDIT=no` leaves out the audit, which asks a service in the network.
AUDIT ?= yes
AUDITOR := .venv-audit/.audit-$(VERSION)
# The pins of newest.txt that are newer than Beam takes.
BEAM_HAS_OLDER := pillow|protobuf|pyarrow|python-dateutil
# Two processes, a file of tests on one of them: most of the time is one thread compiling.
PARALLEL := --numprocesses 2 --dist loadfile
INSTALL := $(BIN)/python .ci/install.py constraints/$(CONSTRAINTS).txt
# uv finds versions for all Pythons and systems at once, which pip does not. It keeps the pins that a file has already.
LOCK := .venv-lock/bin/uv pip compile pyproject.toml --quiet --group build --generate-hashes --annotation-style line \
  --custom-compile-command "make lock" $(UPGRADE)

.DEFAULT_GOAL := help
.PHONY: help demo docs test exhaustive beam faults mutants check audit lock fast lint types format clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(TRAIN)  ## vocabulary, examples and a small BERT from the text inside Python itself (4 to 8 minutes)
	$(BIN)/python -m train.demo

docs: $(DOCS)  ## the documentation site, in site/; a link to a page or heading that does not exist is an error
	$(BIN)/python -m docs.build_site

test: $(if $(PARITY),$(DEV),$(CHECK))  ## the whole test suite; parity with transformers on Python 3.11, or with PARITY=yes
	$(BIN)/python -m pytest $(PARALLEL)

exhaustive: $(if $(PARITY),$(DEV),$(CHECK))  ## the cases that `test` takes samples of: all characters, lines, products of options
	$(BIN)/python -m pytest $(PARALLEL) -m exhaustive

beam: $(BEAM)  ## the tests of --runner beam, in .venv-beam: Beam takes no newer protobuf than 6, for one
	.venv-beam/bin/python -m pytest $(PARALLEL) tests/train/preparation/test_beam.py

faults: $(if $(PARITY),$(DEV),$(CHECK))  ## kills, damage, full disks, hostile files: each promise of docs/reliability.md, counted
	$(BIN)/python -m tests.faults.run --write

mutants: $(if $(PARITY),$(DEV),$(CHECK))  ## breaks the code in some 400 places, one at a time: the tests must notice each
	$(BIN)/python -m tests.mutants.run

check: $(CHECK)  ## lint, types, the fast tests and the audit (AUDIT=no leaves that out): before every commit
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types fast $(if $(filter no,$(AUDIT)),,audit)
	@$(if $(filter no,$(AUDIT)),echo "the dependencies were not audited: AUDIT=no")

audit: $(AUDITOR)  ## known vulnerabilities in the pinned packages; it fails if it could compare nothing
	.venv-audit/bin/python .ci/audit.py constraints/newest.txt constraints/torch.txt

lock:  ## the pins of constraints/ with their hashes, after a change in pyproject.toml (UPGRADE=--upgrade: newer ones)
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip --disable-pip-version-check install --quiet 'uv>=0.13,<0.14'
	echo 'torch; python_version < "3"' > .venv-lock/without.txt
	$(LOCK) --universal --python-version 3.11.5 --override .venv-lock/without.txt --extra dev --extra docs --extra tpu --extra cuda --output-file constraints/newest.txt
	$(LOCK) --python-version 3.11 --python-platform linux --extra test --extra lint --output-file constraints/oldest.txt

fast: $(CHECK)  ## the fast tests alone
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow and not parity"

lint: $(CHECK)  ## ruff: rules and formatting
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(CHECK)  ## pyrefly
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

format: $(CHECK)  ## let ruff mend what it can
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

$(BEAM): pyproject.toml constraints/newest.txt
	@echo "installing bert_jax, Apache Beam and what the tests need into .venv-beam"
	$(PYTHON) -m venv --clear .venv-beam
	grep -oE '^[^ #]+==[^\\]+' constraints/newest.txt | grep -v -E '^($(BEAM_HAS_OLDER))==' > .venv-beam/constraints.txt
	.venv-beam/bin/python -m pip --disable-pip-version-check install --quiet --constraint .venv-beam/constraints.txt --editable '.[train,beam,parquet]' pytest pytest-xdist hypothesis
	@touch $@

$(AUDITOR):
	@echo "installing pip-audit into .venv-audit"
	$(PYTHON) -m venv --clear .venv-audit
	.venv-audit/bin/python -m pip --disable-pip-version-check install --quiet 'pip-audit>=2.10,<3'
	@touch $@

clean:  ## remove the virtual environments, the site and what the demo made
	rm -rf .venv .venv-3.* .venv-oldest .venv-beam .venv-audit .venv-lock runs/demo build site

$(INTERPRETER):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"bert_jax needs Python 3.11 or newer; $(PYTHON) is {v.major}.{v.minor}. Say which one to use: make PYTHON=python3.13 ...")'
	$(PYTHON) -m venv --clear $(VENV)

$(TRAIN) $(CHECK) $(DEV) $(DOCS): pyproject.toml constraints/$(CONSTRAINTS).txt constraints/torch.txt .ci/install.py | $(INTERPRETER)

$(TRAIN):
	@echo "installing bert_jax and what training needs into $(VENV)"
	$(INSTALL) train
	@touch $@

$(CHECK):
	@echo "installing bert_jax, what its tests need and the linters into $(VENV)"
	$(INSTALL) test,lint
	@touch $@ $(TRAIN)

$(DEV):
	@echo "installing bert_jax and what the tests need (PyTorch and transformers among it) into $(VENV)"
	$(INSTALL) dev
	@touch $@ $(CHECK) $(TRAIN)

$(DOCS):
	@echo "installing bert_jax and what builds its documentation into $(VENV)"
	$(INSTALL) docs
	@touch $@
