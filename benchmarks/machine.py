"""The CPU that a figure was measured on, and which of its instructions matter to matrix products."""

import os
import re
from pathlib import Path

# The kernel's flag -> what RESULTS.md calls it; the CPU with all of them is the fastest at products.
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "BF16",
    "amx_bf16": "AMX",
}


def describe_cpu() -> str:
    """Such as "AMD EPYC, 2 cores: AVX2, AVX-512, VNNI, BF16"."""
    info = Path("/proc/cpuinfo").read_text()
    found = {key: re.search(rf"^{key}\s*:\s*(.*)$", info, re.MULTILINE) for key in ("model name", "flags")}
    name, flags = (match[1] if match else "" for match in found.values())
    known = [word for flag, word in INSTRUCTIONS.items() if flag in flags.split()]
    cores = len(os.sched_getaffinity(0))
    return f"{name or 'unknown CPU'}, {cores} cores: {', '.join(known) or 'no AVX2'}"
