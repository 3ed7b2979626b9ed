"""A process that was forked says so in place of hanging: real forks, in a process of their own."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from bert_jax.runtime import forks
from tests.root import ROOT

SCRIPT = """
import os
import sys

from tests.inference.engine.test_stream import Ends

if sys.argv[1] == "openvino":
    from bert_jax.inference.runtimes.openvino import compiler

    make, use = lambda: compiler("float32"), lambda made: None
else:
    make, use = Ends, lambda made: print(list(made.stream(["ab", "abc"])))
use(made := make())
if (child := os.fork()) == 0:
    for call in (lambda: use(made), make):
        try:
            call()
        except RuntimeError as error:
            print(error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["xla", "openvino"])
def test_a_fork_can_neither_use_what_was_made_nor_make_another(runtime: str):
    if find_spec(runtime) is None and runtime != "xla":
        pytest.skip(f"{runtime} is not installed")
    words = [sys.executable, "-c", SCRIPT, runtime]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    name = {"xla": "JAX", "openvino": "OpenVINO"}[runtime]
    assert f"{name} was in use before os.fork, and would hang in this process; load models after the fork only" in told
    assert told.count("hang in this process") == (2 if runtime == "xla" else 1)


def test_the_first_use_may_come_after_the_fork(monkeypatch):
    monkeypatch.setattr(forks, "_started", {})
    for process in (1, 1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        if process == 1:
            forks.refuse_inherited("JAX")
            continue
        forks.refuse_inherited("another")
        with pytest.raises(RuntimeError, match=r"^JAX was in use before os\.fork"):
            forks.refuse_inherited("JAX")
