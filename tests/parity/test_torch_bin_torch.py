"""What torch.save writes, we read as torch.load does: every dtype, every kind of view, both forms of file."""

from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from bert_jax.errors import UserError
from bert_jax.formats.torch.bin import TorchBin

pytestmark = pytest.mark.parity

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64]  # fmt: skip
FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def check(path: Path, names=None) -> None:
    """The file read by us and by torch."""
    expected = torch.load(path, map_location="cpu", weights_only=True)
    expected = expected if names is None else names(expected)
    with TorchBin(path) as tensors:
        assert list(tensors) == list(expected)
        for key, tensor in expected.items():
            array = as_numpy(tensor)
            assert tensors.shape(key) == tuple(tensor.shape)
            assert tensors.dtype(key) == tensors[key].dtype.name == str(tensor.dtype).removeprefix("torch.")
            assert tensors[key].shape == array.shape
            assert tensors[key].tobytes() == array.tobytes()
        assert tensors.verify() is not False


@FORMS
def test_dtypes_and_views(tmp_path, zipped):
    torch.manual_seed(0)
    base = torch.randn(6, 8)
    dtypes = DTYPES if zipped else DTYPES[:-3]  # torch cannot read back the unsigned ones that it saves in the old form
    saved = OrderedDict((str(dtype), (torch.randn(3, 4) * 50).abs().to(dtype)) for dtype in dtypes)
    saved |= {
        "base": base, "transposed": base.T, "row": base[2], "column": base[:, 3], "steps": base[::2, 1::3],
        "expanded": base[:1].expand(5, 8), "permuted": torch.randn(2, 3, 4, 5).permute(3, 0, 2, 1),
        "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 3), "view": base.view(8, 6), "parameter": nn.Parameter(base),
        "ids": torch.arange(512).expand((1, -1)), "again": base, "unbound": base.unfold(1, 4, 2),
    }  # fmt: skip
    torch.save(saved, tmp_path / "x.bin", _use_new_zipfile_serialization=zipped)
    check(tmp_path / "x.bin")


@FORMS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol_that_torch_takes(tmp_path, zipped, protocol):
    saved = {f"layer.{index}.weight": torch.full((2, 3), float(index)) for index in range(300)}
    torch.save(saved, tmp_path / "x.bin", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    with TorchBin(tmp_path / "x.bin") as tensors:
        assert {key: array.tolist() for key, array in tensors.items()} == {k: t.tolist() for k, t in saved.items()}


@FORMS
def test_a_module_and_a_training_checkpoint(tmp_path, zipped):
    model = nn.Sequential(nn.Embedding(7, 4), nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(5)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "state.bin", _use_new_zipfile_serialization=zipped)
    check(tmp_path / "state.bin")
    checkpoint = {
        "epoch": 3, "rng": torch.get_rng_state(), "optimizer": optimizer.state_dict(),
        "state_dict": nn.DataParallel(model).state_dict(),
    }  # fmt: skip
    torch.save(checkpoint, tmp_path / "run.bin", _use_new_zipfile_serialization=zipped)
    check(tmp_path / "run.bin", lambda all: {k.removeprefix("module."): t for k, t in all["state_dict"].items()})


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_published_files_in_the_form_before_zip(data_dir, family):
    check(data_dir / "checkpoints" / f"fastnlp-small_{family}" / "small_pytorch_model.bin")


def test_a_zip_without_sums_is_not_called_damaged(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.arange(5.0)}, tmp_path / "x.bin")
    finally:
        torch.serialization.set_crc32_options(True)
    with TorchBin(tmp_path / "x.bin") as tensors:
        assert tensors.verify() is None
    torch.save({"w": torch.arange(5.0)}, tmp_path / "x.bin")
    with TorchBin(tmp_path / "x.bin") as tensors:
        assert tensors.verify() is True


@FORMS
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        ({"w": torch.ones(2, dtype=torch.complex64)}, "ComplexFloatStorage"),
        ({"w": torch.ones(2, 2).to_sparse()}, "_rebuild_sparse_tensor"),
        ({"w": np.float32(1)}, "numpy"),
        ({"w": torch.ones(2), "args": torch.device("cpu")}, "torch.device"),
    ],
    ids=["module", "complex", "sparse", "numpy", "device"],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_what_is_no_dict_of_dense_real_tensors_is_refused(tmp_path, zipped, value, found):
    torch.save(value, tmp_path / "x.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=found):
        TorchBin(tmp_path / "x.bin")
