"""Checkpoints in normal use: restoring, on any mesh, which steps are kept, and errors."""

import json
import logging
import os
import warnings
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.files import file_digest
from bert_jax.training.checkpoint import hashing, manifest
from bert_jax.training.checkpoint.checkpoints import Checkpoints, NonFiniteError
from bert_jax.training.checkpoint.step_directory import StepDirectory
from tests.guide import blocks_of, run_blocks

pytestmark = pytest.mark.eight_devices


@flax.struct.dataclass
class State:
    """Like the training state: a dataclass with counters, a parameter tree and Optax's named tuples."""

    step: Any
    params: Any
    opt_state: Any
    skipped_total: Any


def make_state(seed: int = 0, step: int = 3) -> State:
    draw = np.random.default_rng(seed)
    params = {
        "bert": {
            "layer_0": {"kernel": jnp.asarray(draw.normal(size=(8, 16)), jnp.float32), "bias": jnp.zeros(16)},
            "scale": jnp.asarray(draw.normal(size=24), jnp.bfloat16),
        }
    }
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.masked(optax.adamw(1e-3), {"bert": True}))
    opt_state = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape) * 100, x.dtype), tx.init(params))
    return State(jnp.int32(step), params, opt_state, jnp.int32(2**31 - 1))


def mesh_of(**sizes: int) -> jax.sharding.Mesh:
    count = int(np.prod(list(sizes.values())))
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * len(sizes), devices=jax.devices()[:count]
    )


def spread(state: Any, mesh: jax.sharding.Mesh) -> Any:
    """The state on a mesh: matrices split over every axis name, in turn over their axes; the rest replicated."""

    def place(leaf):
        names = (*mesh.axis_names, None, None)[:2] if leaf.ndim == 2 else ()
        return jax.device_put(leaf, NamedSharding(mesh, P(*names)))

    return jax.tree.map(place, state)


def abstract(state: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_bitwise(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), e in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype, path
        assert a.shape == e.shape, path
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes(), path


def saved(directory, *steps: int, keep: int = 9) -> State:
    """A directory with a state for each step (seeded by its number); returns the last one."""
    with Checkpoints(directory, keep=keep) as checkpoints:
        for step in steps:
            state = make_state(step, step)
            checkpoints.save(step, state, {"step": step})
    return state


def test_a_training_state_comes_back_bitwise_in_its_own_classes(tmp_path):
    state = make_state()
    metadata = {"config": "abc", "mesh": {"data": 1}, "loss": 0.1, "phases": [[128, 8]], "note": None}
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(3, state, metadata)
        checkpoints.wait()
        restored = checkpoints.restore(abstract(state))
    assert_bitwise(restored.state, state)
    assert isinstance(restored.state, State)
    assert (restored.step, restored.metadata) == (3, metadata)


@pytest.mark.slow
def test_saving_and_restoring_warns_of_nothing(tmp_path, caplog):
    state = spread(make_state(), mesh_of(data=2))
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, state, {})
            checkpoints.save(2, state, {})
            checkpoints.wait()
            checkpoints.restore(abstract(state))
            checkpoints.restore_arrays()
            checkpoints.restore({"params": jax.eval_shape(lambda: state.params)}, partial=True)
    assert [str(w.message) for w in caught] == []
    assert caplog.messages == []


@pytest.mark.slow
def test_a_state_moves_to_another_mesh_bitwise(tmp_path):
    plain = make_state()
    meshes = [mesh_of(data=8), mesh_of(data=4, fsdp=2), mesh_of(data=1)]
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        state = spread(plain, meshes[0])
        for number, mesh in enumerate(meshes[1:]):
            checkpoints.save(number, state, {})
            checkpoints.wait()
            target = abstract(spread(plain, mesh))
            state = checkpoints.restore(target).state
            assert_bitwise(state, plain)
            for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(target), strict=True):
                assert leaf.sharding == wanted.sharding


@pytest.mark.slow
def test_donating_and_overwriting_right_after_save_does_not_reach_the_file(tmp_path):
    big = jnp.arange(4 << 20, dtype=jnp.float32)
    host = np.arange(1 << 20, dtype=np.float32)
    expected = np.asarray(big).copy(), host.copy()
    advance = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"device": big, "host": host}, {})
        host[:] = -1
        for _ in range(4):
            big = advance(big)
        jax.block_until_ready(big)
        checkpoints.wait()
        arrays = checkpoints.restore_arrays().state
    np.testing.assert_array_equal(arrays["device"], expected[0])
    np.testing.assert_array_equal(arrays["host"], expected[1])


def test_arrays_come_back_without_knowing_the_tree(tmp_path):
    state = saved(tmp_path, 5)
    restored = Checkpoints(tmp_path).restore_arrays()
    assert set(restored.state) == {"step", "params", "opt_state", "skipped_total"}
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(restored.state))
    assert_bitwise(restored.state["params"], state.params)
    assert restored.state["opt_state"]["1"]["inner_state"]["0"]["count"] == state.opt_state[1].inner_state[0].count
    only = Checkpoints(tmp_path).restore_arrays(part="params")
    assert set(only.state) == {"params"}
    assert_bitwise(only.state["params"], state.params)
    with pytest.raises(UserError, match="weights: not in the checkpoint"):
        Checkpoints(tmp_path).restore_arrays(part="weights")


def test_parameters_come_back_without_the_optimizer(tmp_path):
    state = saved(tmp_path, 5)
    target = {"params": abstract(spread(state.params, mesh_of(data=2, fsdp=2)))}
    with pytest.raises(UserError, match=r"opt_state.* in the checkpoint, not wanted"):
        Checkpoints(tmp_path).restore(target)
    assert_bitwise(Checkpoints(tmp_path).restore(target, partial=True).state, {"params": state.params})


def test_scalars_lists_and_missing_values_come_back(tmp_path):
    state = {"count": np.int64(2**40), "none": None, "list": [jnp.ones(2), jnp.zeros(())]}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, state, {})
        checkpoints.wait()
        arrays = checkpoints.restore_arrays().state
        del state["count"]
        restored = checkpoints.restore(abstract(state), partial=True).state
    assert_bitwise(restored, state)
    assert arrays["count"] == 2**40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.replace(params={"bert": s.params["bert"] | {"scale": jnp.zeros(23, jnp.bfloat16)}}),
            r"params/bert/scale: bfloat16\[24\] in the checkpoint, bfloat16\[23\] wanted",
        ),
        (
            lambda s: s.replace(params={"bert": s.params["bert"] | {"scale": jnp.zeros(24)}}),
            r"params/bert/scale: bfloat16\[24\] in the checkpoint, float32\[24\] wanted",
        ),
        (
            lambda s: s.replace(params=s.params | {"head": jnp.zeros(2)}),
            r"params/head: not in the checkpoint, float32\[2\] wanted",
        ),
        (lambda s: s.replace(step=None), r"step: int32\[\] in the checkpoint, not wanted"),
    ],
)
def test_a_target_that_does_not_fit_is_refused_by_name(tmp_path, change, message):
    state = saved(tmp_path, 1, 2)
    with pytest.raises(UserError, match=message) as refusal:
        Checkpoints(tmp_path).restore(abstract(change(state)))
    assert "\n" not in str(refusal.value)
    assert str(tmp_path / "2") in str(refusal.value)


@pytest.mark.slow
def test_the_newest_steps_are_kept(tmp_path):
    state = saved(tmp_path, 1, 2, 3, 4, 5, keep=2)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.steps() == [4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]
    assert checkpoints.verify(4) == checkpoints.verify(5) == []
    assert int(checkpoints.restore(abstract(state)).state.step) == 5
    assert int(checkpoints.restore(abstract(state), step=4).state.step) == 4
    with pytest.raises(UserError, match="no step 3; there are 4; 5"):
        checkpoints.restore(abstract(state), step=3)
    with pytest.raises(UserError, match="keep=1"):
        Checkpoints(tmp_path, keep=1)


@pytest.mark.slow
def test_extra_steps_take_no_place_of_others_and_can_be_passed_over(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step, kept in [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (5, [2, 4, 5]), (6, [5, 6])]:
            checkpoints.save(step, (state := make_state(step)), {}, extra=step in (3, 4))
            checkpoints.wait()
            assert checkpoints.steps() == kept
            newest = checkpoints.restore(abstract(state), extra=False).step
            assert newest == (step if step not in (3, 4) else 2)
            assert checkpoints.restore(abstract(state)).step == step


@pytest.mark.slow
def test_what_need_not_be_deleted_is_not_read(tmp_path, monkeypatch):
    """As at the first save of a start of a run that keeps all: it would read hundreds of gigabytes."""
    saved(tmp_path, 1, 2, 3, keep=9)
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        read = []
        monkeypatch.setattr(StepDirectory, "problems", lambda self, step: read.append(step) or [])
        checkpoints.save(4, make_state(4), {}, extra=True)  # deletes none: three are no extra ones
        checkpoints.delete_old()
        checkpoints.wait()
        assert not read and checkpoints.steps() == [1, 2, 3, 4]
        checkpoints.save(5, make_state(5), {})
        checkpoints.wait()
        assert read and checkpoints.steps() == [2, 3, 4, 5]


def test_an_older_step_stays_while_a_newer_one_is_damaged(tmp_path, caplog):
    saved(tmp_path, 1, 2)
    (tmp_path / "2" / "state" / "_METADATA").unlink()
    saved(tmp_path, 3, keep=2)
    assert Checkpoints(tmp_path).steps() == [1, 2, 3]
    assert "state/_METADATA: missing" in caplog.text
    saved(tmp_path, 4, keep=2)
    assert Checkpoints(tmp_path).steps() == [3, 4]


@pytest.mark.slow
def test_a_run_reads_each_step_once_and_again_only_if_a_file_has_changed(tmp_path, monkeypatch, caplog):
    read = []

    def counted(path):
        read.append(path.relative_to(tmp_path).as_posix())
        return file_digest(path)

    for module in (hashing, manifest):
        monkeypatch.setattr(module, "file_digest", counted)
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, make_state(step, step), {})
        checkpoints.wait()
        assert len(read) == len(set(read)) > 4 * 5

        (data,) = (tmp_path / "3/state/d").iterdir()
        before = data.stat()
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        with data.open("r+b") as file:  # the same file, as a program that writes to a wrong place would
            file.write(content)
        os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
        read.clear()
        checkpoints.save(5, make_state(5, 5), {})
        checkpoints.wait()
    assert f"3/{data.relative_to(tmp_path / '3').as_posix()}" in read
    assert not any(name.startswith(("2/", "4/")) for name in read)
    assert Checkpoints(tmp_path).steps() == [2, 3, 4, 5]
    assert f"checkpoint {tmp_path / '3'} is damaged" in caplog.text


def test_a_step_that_is_not_later_is_refused_until_the_later_ones_are_deleted(tmp_path):
    state = saved(tmp_path, 10, 20)
    with Checkpoints(tmp_path) as checkpoints:
        for step in (20, 15, 10):
            with pytest.raises(ValueError, match=f"step {step} cannot be saved after step 20"):
                checkpoints.save(step, state, {})
        checkpoints.delete_after(10)
        checkpoints.save(15, state, {})
    assert checkpoints.steps() == [10, 15]


def test_values_that_are_not_finite_are_refused_and_nothing_is_written(tmp_path):
    mesh = mesh_of(data=8)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for value in (np.nan, np.inf, -np.inf):
            state = make_state()
            state.params["bert"]["layer_0"]["kernel"] = state.params["bert"]["layer_0"]["kernel"].at[7, 15].set(value)
            with pytest.raises(NonFiniteError, match="step 3 is not saved: params/bert/layer_0/kernel holds"):
                checkpoints.save(3, spread(state, mesh), {})
        with pytest.raises(NonFiniteError, match="moment holds"):
            checkpoints.save(3, {"weights": jnp.ones(3), "moment": np.array([1, np.nan], np.float32)}, {})
        assert not (tmp_path / "checkpoints").exists()
        checkpoints.save(3, make_state(), {})
    assert checkpoints.steps() == [3]


def test_anything_but_arrays_and_json_is_refused(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match="count is a int: a state holds arrays only"):
            checkpoints.save(1, {"count": 3}, {})
        with pytest.raises(TypeError, match=r"key is a key<fry>: store jax.random.key_data"):
            checkpoints.save(1, {"key": jax.random.key(0)}, {})
        with pytest.raises(ValueError, match=r"x has the shape \(0, 3\)"):
            checkpoints.save(1, {"x": jnp.zeros((0, 3))}, {})
        with pytest.raises(ValueError, match="metadata of a checkpoint must be JSON"):
            checkpoints.save(1, {"x": jnp.ones(1)}, {"devices": jax.devices()})
        with pytest.raises(ValueError, match="no unambiguous path"):
            checkpoints.save(1, {"a/b": jnp.ones(1)}, {})
    with pytest.raises(ValueError, match="are closed"):
        checkpoints.save(1, {"x": jnp.ones(1)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_checkpoint_and_a_bad_one_differ(tmp_path):
    state = make_state()
    for directory in (tmp_path, tmp_path / "missing"):
        assert Checkpoints(directory).steps() == []
        with pytest.raises(FileNotFoundError, match="no checkpoint found"):
            Checkpoints(directory).restore(abstract(state))
    assert not (tmp_path / "missing").exists()


def test_strangers_are_ignored_with_a_warning_and_left_alone(tmp_path, caplog):
    state = saved(tmp_path, 7)
    (tmp_path / "88").mkdir()
    (tmp_path / "99" / "state").mkdir(parents=True)
    (tmp_path / "99" / "state" / "weights").write_bytes(b"?")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "007").mkdir()
    restored = Checkpoints(tmp_path).restore(abstract(state))
    assert restored.step == 7
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    for name in ("88", "99", "notes.txt", "007"):
        assert sum(message.startswith(f"ignoring {tmp_path / name}: ") for message in warned) == 1, name
    # The next save removes nothing but the empty one, whose number it may want.
    saved(tmp_path, 8, 9, keep=2)
    assert {"8", "9", "99", "notes.txt", "007"} == {path.name for path in tmp_path.iterdir()}


def test_what_is_in_the_way_of_a_save_is_set_aside(tmp_path, caplog):
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "mine").write_text("?")
    saved(tmp_path, 5)
    assert Checkpoints(tmp_path).steps() == [5]
    (aside,) = tmp_path.glob("5.set-aside-*")
    assert (aside / "mine").read_text() == "?"
    assert "which is in the way of a save" in caplog.text


def test_a_reader_changes_nothing_and_the_next_save_sweeps(tmp_path, caplog):
    state = saved(tmp_path, 1, 2)
    (tmp_path / "2" / "manifest.json").unlink()  # killed between the commit and the manifest
    (tmp_path / "3.orbax-checkpoint-tmp" / "state").mkdir(parents=True)  # killed before the commit
    before = sorted(tmp_path.rglob("*"))
    assert Checkpoints(tmp_path).restore(abstract(state)).step == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert f"ignoring {tmp_path / '2'}: it has no manifest.json" in caplog.text
    saved(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4"]


def test_the_manifest_says_what_is_in_a_step(tmp_path):
    state = saved(tmp_path, 6)
    stated = Checkpoints(tmp_path).manifest(6)
    assert (stated.step, stated.metadata, str(stated.tree["step"])) == (6, {"step": 6}, "int32[]")
    record = json.loads((tmp_path / "6" / "manifest.json").read_text())
    assert record["step"] == 6
    assert record["metadata"] == {"step": 6}
    assert record["tree"]["params/bert/scale"] == {"shape": [24], "dtype": "bfloat16"}
    assert len(record["tree"]) == len(jax.tree.leaves(state))
    files = {str(p.relative_to(tmp_path / "6")) for p in (tmp_path / "6").rglob("*") if p.is_file()}
    assert set(record["files"]) == files - {"manifest.json"}


def test_steps_of_a_relative_path_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("runs/mine/checkpoints", 1)
    assert Checkpoints("runs/mine/checkpoints").steps() == [1]


@pytest.mark.slow
def test_the_guide_runs_as_written(tmp_path, monkeypatch):
    blocks = blocks_of("docs/checkpoints.md", "python")
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    run_blocks(blocks)
    assert [path.name for path in sorted((tmp_path / "runs/mine/checkpoints").iterdir())] == ["200", "300"]
