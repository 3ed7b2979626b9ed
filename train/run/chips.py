"""Chips with the figures of their makers: peak, memory and links."""

from typing import Literal, NamedTuple


class Chip(NamedTuple):
    """What one chip can do; a JAX device is the chip's `devices`-th part.

    Attributes:
        kind: "tpu" is compiled for, "gpu" only lowered and estimated, "cpu" compiled for this machine.
        axes: of a topology's shape.
        hbm: bytes of memory that a program can use, for each device.
        flops: bfloat16 operations a second of the matrix units.
        memory: bytes a second of the memory.
        links: bytes a second that the chip can send to its neighbours over all its links together.
        network: bytes a second that it can send to other slices.
        clock: cycles a second, of a TPU.
        devices: JAX devices of a chip.
    """

    kind: Literal["tpu", "gpu", "cpu"]
    axes: int
    hbm: float
    flops: float
    memory: float
    links: float
    network: float
    clock: float | None
    devices: int = 1


GIB = 2**30
# Google's pages https://docs.cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e and tpu7x have peak, memory and links. The
# links are half of "bidirectional ICI bandwidth per chip", or "all-reduce bandwidth per Pod" by chip; the network is
# that of the data centre by chip, where a page has it, and for v3 and v4 that of v5e. What a program can use of the
# memory is what libtpu's compiler says when one is too large. The clock is the peak by the operations of the matrix
# units in a cycle, 2 x 128 x 128 each; for v6e and tpu7x the one with which the compiler's estimate of a product of
# 8192 x 8192 matrices is 90 % of the peak, as it is for the others. GPUs: Nvidia's data sheets of the SXM cards without
# sparsity, NVLink in one direction, and a card of 400 Gbit/s (a100: 200) for each. JAX takes 75 % of their memory
# unless it is told otherwise.
CHIPS = {
    "v3": Chip("tpu", 2, 15.48 * GIB, 123e12, 900e9, 332e9, 3.1e9, 0.94e9, devices=2),
    "v4": Chip("tpu", 3, 30.75 * GIB, 275e12, 1200e9, 269e9, 3.1e9, 1.05e9),
    "v5e": Chip("tpu", 2, 15.75 * GIB, 197e12, 819e9, 200e9, 3.1e9, 1.5e9),
    "v5p": Chip("tpu", 3, 95.73 * GIB, 459e12, 2765e9, 600e9, 6.25e9, 1.75e9),
    "v6e": Chip("tpu", 2, 31.24 * GIB, 918e12, 1640e9, 400e9, 12.5e9, 2.2e9),
    "tpu7x": Chip("tpu", 3, 94.74 * GIB, 2307e12, 7380e9, 600e9, 12.5e9, 2.5e9, devices=2),
    "a100": Chip("gpu", 1, 0.75 * 80e9, 312e12, 2039e9, 300e9, 25e9, None),
    "h100": Chip("gpu", 1, 0.75 * 80e9, 989e12, 3350e9, 450e9, 50e9, None),
    "h200": Chip("gpu", 1, 0.75 * 141e9, 989e12, 4800e9, 450e9, 50e9, None),
}

# JAX's names of their devices. That of a TPU is the whole `device_kind`; a GPU's begins so, and goes on with its memory
# and form factor.
_DEVICE_KINDS = {
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
    "NVIDIA A100": "a100",
    "NVIDIA H100": "h100",
    "NVIDIA H200": "h200",
}
_SLOWER_FORMS = ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL")  # than the SXM cards of CHIPS


def peak_flops(device_kind: str) -> float | None:
    """Peak bfloat16 operations per second of a device, by JAX's name for it; None if unknown."""
    if device_kind.startswith(_SLOWER_FORMS):
        return None
    for kind, name in _DEVICE_KINDS.items():
        if device_kind == kind or (kind.startswith("NVIDIA ") and device_kind.startswith(kind)):
            return CHIPS[name].flops / CHIPS[name].devices
    return None
