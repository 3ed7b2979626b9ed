"""The mesh: its sizes, and where its devices are, within slices and across them."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from bert_jax.errors import UserError
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.mesh import AXES, MeshConfig, make_mesh, on_slices
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.step import compile_eval_step, compile_train_step, init_state
from tests import tiny
from tests.slices import devices_in_slices

pytestmark = pytest.mark.eight_devices


def test_mesh_takes_the_remaining_devices_and_is_of_type_auto():
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "zero": 1, "tensor": 2}
    assert mesh.axis_types == (AxisType.Auto,) * 4
    assert make_mesh().shape["data"] == 8
    assert make_mesh(MeshConfig(tensor=2), jax.devices()[:2]).size == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(fsdp=3), "data=-1, fsdp=3, tensor=1: the product of the sizes must be .* 8$"),
        (MeshConfig(data=4), "data=4, fsdp=1, tensor=1: the product of the sizes must be .* 8$"),
        (MeshConfig(fsdp=-1), "one of them may be -1"),
        (MeshConfig(tensor=0), "at least 1"),
    ],
)
def test_mesh_that_does_not_fit_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        make_mesh(config)


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
@pytest.mark.parametrize(
    ("slices", "sizes"), [(2, (16, 1, 1, 1)), (2, (4, 2, 1, 2)), (4, (4, 4, 2, 1)), (3, (6, 2, 1, 2))]
)
def test_only_data_goes_over_the_network_between_slices(platform: str, slices: int, sizes: tuple[int, int, int, int]):
    devices = devices_in_slices(slices, platform)
    mesh = on_slices(sizes, devices)
    assert mesh.shape == sizes
    assert set(mesh.ravel()) == set(devices)
    indices = np.vectorize(lambda device: device.slice_index)(mesh)
    for row in indices:
        assert len(set(row.ravel())) == 1  # the devices that share a row of data
    assert sorted(indices[:, 0, 0, 0]) == indices[:, 0, 0, 0].tolist()  # the data rows of a slice are neighbours


def test_a_mesh_that_would_leave_its_slice_is_refused():
    devices = devices_in_slices(2, "tpu")
    for sizes in ((1, 16, 1, 1), (1, 8, 1, 2), (1, 1, 16, 1), (3, 1, 1, 1)):
        with pytest.raises(UserError, match=r"in 2 slices of 8, .*: 1, 2, 4, 8$") as error:
            on_slices(sizes, devices)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="slices of 7 to 8 devices; all must have the same number"):
        on_slices((15, 1, 1, 1), devices[:-1])


@pytest.mark.parametrize("sizes", [(8, 1, 1, 1), (2, 2, 1, 2), (1, 4, 1, 2), (2, 1, 4, 1)])
def test_a_single_slice_is_placed_as_jax_places_it(sizes: tuple[int, int, int, int]):
    theirs = jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 4)
    assert (
        make_mesh(MeshConfig(**dict(zip(AXES, sizes, strict=True)))) == theirs
    )  # devices, names and types: so the same compiled programs


def test_zero_and_tensor_together_are_refused():
    with pytest.raises(UserError, match=r"zero=2: .*with tensor use fsdp=4 instead"):
        make_mesh(MeshConfig(fsdp=2, zero=2, tensor=2), jax.devices())


@pytest.mark.parametrize("mesh", ["explicit", "two axes", "other names"])
def test_a_mesh_of_another_kind_is_refused_with_what_would_be_right(mesh: str):
    auto = (AxisType.Auto,) * 2
    found, told = {
        "explicit": (jax.make_mesh((2, 4, 1, 1), AXES), r"data \(Explicit\), fsdp \(Explicit\)"),
        "two axes": (jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=auto), r"data \(Auto\), fsdp \(Auto\);"),
        "other names": (jax.make_mesh((2, 4), ("x", "y"), axis_types=auto), r"x \(Auto\), y \(Auto\);"),
    }[mesh]
    message = f"mesh: found the axes {told}.* expected data, fsdp, zero, tensor, all of type Auto"
    model, tx = BertForPreTraining(tiny.CONFIG), make_optimizer(tiny.OPTIMIZER)
    for use in (
        lambda: init_state(jax.random.key(0), model, tx, mesh=found),
        lambda: compile_train_step(model, tx, make_schedule(tiny.OPTIMIZER), found),
        lambda: compile_eval_step(model, found),
    ):
        with pytest.raises(UserError, match=message):
            use()
