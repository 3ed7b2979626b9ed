# Every target does its own set-up: a virtual environment in .venv, the pinned packages, CPU only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processes, a file of tests on one of them: most of the time is one thread compiling. `fast` compiles with few
# optimizations, which is a quarter faster, `test` as users do.
PARALLEL := --numprocesses 2 --dist loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check fast lint types format faults clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.train  ## vocabulary, examples and a small BERT from the text inside Python itself (about 4 minutes)
	$(BIN)/python -m train.demo

test: $(VENV)/.dev  ## the whole test suite, parity with transformers included
	$(BIN)/python -m pytest $(PARALLEL)

check: $(VENV)/.dev  ## lint, types and the fast tests: before every commit
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types fast

fast: $(VENV)/.dev  ## the fast tests alone
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow and not parity"

lint: $(VENV)/.dev  ## ruff: rules and formatting
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev  ## pyright
	$(BIN)/pyright

format: $(VENV)/.dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:  ## remove the virtual environment and what the demo made
	rm -rf $(VENV) runs/demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"bert_jax needs Python 3.11 or newer; $(PYTHON) is {v.major}.{v.minor}. Say which one to use: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing bert_jax and what training needs into $(VENV)"
	$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing bert_jax and what the tests need (PyTorch and transformers among it) into $(VENV)"
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.train
