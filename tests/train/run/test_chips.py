"""Chips by JAX's names of their devices."""

import pytest

from train.run.chips import peak_flops


@pytest.mark.parametrize(
    ("kind", "tflops_a_chip", "devices_a_chip"),
    [
        ("TPU v3", 123, 2),
        ("TPU v4", 275, 1),
        ("TPU v5 lite", 197, 1),
        ("TPU v5", 459, 1),  # v5p
        ("TPU v6 lite", 918, 1),
        ("TPU7x", 2307, 2),
        ("NVIDIA A100-SXM4-80GB", 312, 1),
        ("NVIDIA H100 80GB HBM3", 989, 1),
        ("NVIDIA H200", 989, 1),
    ],
)
def test_the_peak_of_a_device_is_its_share_of_what_the_data_sheet_says_of_the_chip(
    kind: str, tflops_a_chip: int, devices_a_chip: int
):
    assert peak_flops(kind) == tflops_a_chip * 1e12 / devices_a_chip


@pytest.mark.parametrize(
    "kind", ["cpu", "TPU v2", "TPU v4 lite", "TPU v50", "NVIDIA GeForce RTX 4090", "NVIDIA H100 PCIe"]
)
def test_an_unknown_device_has_no_peak(kind: str):
    assert peak_flops(kind) is None
