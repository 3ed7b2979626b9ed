"""Programs keep the memory that a training step frees: the kernel maps no page of it again in the next step."""

import os
import platform
import subprocess
import sys

import pytest

from tests.root import ROOT

PROGRAM = """
import resource, sys, threading
import jax, numpy as np
from bert_jax.runtime.cpu import keep_freed_memory
from train.run.ending.stopping import exit_code

faults = []

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    temporaries = [np.ones(5 << 20) for _ in range(3)]  # 40 MB each
    del temporaries
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def main(argv):
    keep_freed_memory()  # as `start_jax` does
    for _ in range(3):
        thread = threading.Thread(target=lambda: [step() for _ in range(6)])
        thread.start()
        thread.join()
    print(sum(faults[2:]))
    return 0

sys.exit(exit_code(main, []))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_no_thread_gives_back_what_a_step_frees():
    """Each step of a thread that did would map 60 large pages, or 30,720 small ones."""
    own = ("BERT_JAX_MALLOC", "GLIBC_TUNABLES", "MALLOC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment["JAX_PLATFORMS"] = "cpu"
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 300, found.stdout
