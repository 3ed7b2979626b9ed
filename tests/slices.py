"""Devices that this machine does not have, in slices of a TPU pod or nodes of GPUs."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """What JAX reads of a device to place it: on a GPU its number, on a TPU also its place in the slice."""

    id: int
    slice_index: int
    platform: str
    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    process_index: int = 0


def devices_in_slices(slices: int, platform: str) -> list[FakeDevice]:
    """Slices of 2 x 4 chips of TPU v4, or nodes of eight GPUs; a list that alternates between them."""
    kind = {"tpu": "TPU v4", "gpu": "NVIDIA H100"}[platform]
    of_slice = [
        [FakeDevice(8 * s + n, s, platform, kind, (n % 2, n // 2, 0), process_index=2 * s + n // 4) for n in range(8)]
        for s in range(slices)
    ]
    return [device for together in zip(*of_slice, strict=True) for device in together]
