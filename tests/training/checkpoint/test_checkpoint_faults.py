"""Checkpoints under faults: damaged files, failing writes, kills at any moment, a directory that goes away."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gcsfs.retry import HttpError

from bert_jax.errors import UserError
from bert_jax.training.checkpoint import checkpoints as checkpoint
from bert_jax.training.checkpoint import manifest
from bert_jax.training.checkpoint.checkpoints import Checkpoints, SaveError
from tests.root import ROOT


def make_state(step: int) -> dict:
    """A state that cannot be compressed, so that flipped bits hit the arrays' own bytes."""
    draw = np.random.default_rng(step)
    weights = draw.normal(size=(64, 128)).astype(np.float32)
    return {
        "params": {"weights": weights, "scale": jnp.asarray(draw.normal(size=32), jnp.bfloat16)},
        "step": jnp.int32(step),
    }


def assert_is_state_of(step: int, arrays: dict) -> None:
    for actual, expected in zip(jax.tree.leaves(arrays), jax.tree.leaves(make_state(step)), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.tobytes() == np.asarray(expected).tobytes()


def save(directory, *steps: int, keep: int = 9) -> None:
    with Checkpoints(directory, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, make_state(step), {"step": step})


def files_of(step_directory: Path) -> dict[str, Path]:
    files = {p.relative_to(step_directory).as_posix(): p for p in sorted(step_directory.rglob("*")) if p.is_file()}
    assert len(files) >= 8
    return files


def flip(path: Path, offset: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def warnings_in(caplog) -> str:
    return "\n".join(record.message for record in caplog.records if record.levelno == logging.WARNING)


# ---- damaged steps


@pytest.mark.slow
def test_every_flipped_bit_is_detected_and_its_file_named(tmp_path):
    save(tmp_path, 1)
    checkpoints, draw = Checkpoints(tmp_path), np.random.default_rng(0)
    for name, path in files_of(tmp_path / "1").items():
        size = path.stat().st_size
        original = path.read_bytes()
        for offset in draw.choice(size, min(size, 120 if name == "manifest.json" else 12), replace=False):
            flip(path, int(offset), int(draw.integers(8)))
            problems = checkpoints.verify(1)
            assert len(problems) == 1, (name, offset)
            assert problems[0].startswith(f"{name}: "), problems
            path.write_bytes(original)
    assert checkpoints.verify(1) == []


def test_truncated_emptied_deleted_and_added_files_are_detected(tmp_path):
    save(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path)
    for name, path in files_of(tmp_path / "1").items():
        original = path.read_bytes()
        for content in (original[:-1], original[: len(original) // 2], b"", original + b"\n"):
            if content != original:
                path.write_bytes(content)
                (problem,) = checkpoints.verify(1)
                assert problem.startswith(f"{name}: ")
                if name != "manifest.json":
                    assert f"{len(content)} bytes found, {len(original)} expected" in problem
        path.unlink()
        (problem,) = checkpoints.verify(1)
        assert problem.startswith(f"{name}: ")
        path.write_bytes(original)
    (tmp_path / "1" / "state" / "d" / "extra").write_bytes(b"")
    for folder in ("1", "1/state", "1/state/d"):  # of somebody who looks at it or copies it with macOS
        (tmp_path / folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
        (tmp_path / folder / "._manifest.json").write_bytes(b"\0\5\x16\7")
    assert checkpoints.verify(1) == ["state/d/extra: found, but not part of the checkpoint"]


@pytest.mark.slow
def test_a_flip_in_any_kind_of_file_falls_back_loudly_to_the_step_before(tmp_path, caplog):
    save(tmp_path, 10, 20)
    for name, path in files_of(tmp_path / "20").items():
        if path.stat().st_size == 0:
            continue
        original = path.read_bytes()
        flip(path, len(original) // 2, 3)
        caplog.clear()
        restored = Checkpoints(tmp_path).restore_arrays()
        assert restored.step == 10
        assert_is_state_of(10, restored.state)
        assert f"{tmp_path / '20'} is damaged and is not used: {name}: " in warnings_in(caplog)
        assert f"going back to step 10 of {tmp_path} instead of step 20" in warnings_in(caplog)
        with pytest.raises(UserError, match=f"every checkpoint to restore from is damaged. step 20: {name}: "):
            Checkpoints(tmp_path).restore_arrays(20)
        path.write_bytes(original)
    assert Checkpoints(tmp_path).restore_arrays().step == 20


def test_where_no_step_is_good_each_reason_is_given(tmp_path):
    save(tmp_path, 1, 2, 3)
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_state(0))
    (tmp_path / "1" / "manifest.json").write_text("{}")
    (tmp_path / "2" / "state" / "_METADATA").unlink()
    with (tmp_path / "3" / "state" / "manifest.ocdbt").open("ab") as file:
        file.write(b"?")
    with pytest.raises(UserError) as refusal:
        Checkpoints(tmp_path).restore(target)
    message = str(refusal.value)
    assert "\n" not in message
    for part in ("step 1: manifest.json: ", "step 2: state/_METADATA: missing", "step 3: state/manifest.ocdbt: "):
        assert part in message


def test_a_step_copied_under_another_number_is_not_that_step(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "2").rename(tmp_path / "3")
    assert Checkpoints(tmp_path).verify(3) == ["manifest.json: belongs to step 2"]
    assert Checkpoints(tmp_path).restore_arrays().step == 1


@pytest.mark.slow
def test_after_falling_back_the_damaged_steps_are_saved_again(tmp_path, caplog):
    save(tmp_path, 10, 20, 30)
    for step in (20, 30):
        (tmp_path / str(step) / "state" / "_METADATA").write_text("{}")
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.restore_arrays().step == 10
        checkpoints.save(20, make_state(20), {})
        checkpoints.save(30, make_state(30), {})
    assert checkpoints.steps() == [20, 30]
    assert checkpoints.verify(20) == checkpoints.verify(30) == []
    assert f"replacing the damaged checkpoint {tmp_path / '30'}" in caplog.text


def test_good_files_that_cannot_be_read_are_no_reason_to_go_back(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)

    def fail(*_, **__):
        raise MemoryError("no room")

    monkeypatch.setattr(checkpoint.orbax, "load", fail)
    with pytest.raises(RuntimeError, match=r"2 is undamaged, but Orbax cannot read it: MemoryError: no room"):
        Checkpoints(tmp_path).restore_arrays()


# ---- saves that fail


def test_every_file_and_folder_is_synced_before_the_manifest_gets_its_name(tmp_path, monkeypatch):
    synced, at_rename = [], []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def record_rename(path, target):
        if Path(target).name == "manifest.json":
            at_rename.append((Path(path), set(synced)))
            synced.clear()
        replace(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    save(tmp_path / "checkpoints", 1)
    step = tmp_path / "checkpoints" / "1"
    ((temporary, before),) = at_rename
    assert temporary.parent == step
    contents = {step, *step.rglob("*")} - {step / "manifest.json"}
    assert contents | {temporary, step.parent, tmp_path} <= before
    assert step in synced


def test_a_failure_in_the_background_is_raised_once_and_leaves_the_older_step(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    save(tmp_path, 1)
    with Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_manifest", fail)
            checkpoints.save(2, make_state(2), {})
            with pytest.raises(
                SaveError, match=f"step 2 was not saved to {tmp_path}: OSError.* No space left"
            ) as failure:
                checkpoints.save(3, make_state(3), {})
        assert isinstance(failure.value.__cause__, OSError)
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
        checkpoints.wait()
        # What Orbax's threads write after that goes before the next attempt.
        (tmp_path / "2.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
        checkpoints.save(3, make_state(3), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


@pytest.mark.parametrize("where", ["in Orbax", "after it"])
def test_a_save_that_takes_too_long_leaves_no_files(where, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise TimeoutError("took too long")

    save_async = checkpoint.orbax.save_async

    def save_slowly(*arguments, **options):
        response = save_async(*arguments, **options)
        response.result()
        return SimpleNamespace(result=fail)

    with Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch:
            if where == "in Orbax":
                patch.setattr(checkpoint.orbax, "save_async", save_slowly)
            else:
                patch.setattr(checkpoint, "write_manifest", fail)
            checkpoints.save(2, make_state(2), {})
            with pytest.raises(SaveError, match="took too long"):
                checkpoints.wait()
        # Orbax may still write after a timeout of its own, so its files stay until the next save.
        assert [path.name for path in tmp_path.iterdir()] == (["2"] if where == "in Orbax" else [])
        checkpoints.save(2, make_state(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_closing_raises_the_last_failure_unless_another_exception_is_on_its_way(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "write_manifest", fail)
    with pytest.raises(SaveError, match="Input/output error"), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1), {})

    def interrupted():
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, make_state(1), {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), HttpError({"code": 503})])
def test_steps_that_cannot_be_deleted_are_no_failed_save(tmp_path, monkeypatch, caplog, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(checkpoint.StepDirectory, "delete", fail)
    save(tmp_path, 1, 2, 3, keep=2)
    assert Checkpoints(tmp_path).steps() == [1, 2, 3]
    assert "older checkpoints" in warnings_in(caplog)


def test_a_deletion_takes_the_manifest_first_and_the_mark_of_its_writer_last(tmp_path, monkeypatch):
    save(tmp_path, 1)
    removed, local_path = [], type(manifest.epath.Path(tmp_path))

    def recording(method):
        def call(path, *arguments, **options):
            removed.append(path.name)
            return method(path, *arguments, **options)

        return call

    for name in ("unlink", "rmtree"):
        monkeypatch.setattr(local_path, name, recording(getattr(local_path, name)))
    Checkpoints(tmp_path).delete_after(0)
    assert list(tmp_path.iterdir()) == []
    assert removed[0] == "manifest.json"
    assert "_CHECKPOINT_METADATA" not in removed
    assert removed[-1] == "1"


def test_arrays_that_orbax_would_cast_are_refused(tmp_path, monkeypatch):
    save(tmp_path, 1)
    load = checkpoint.orbax.load
    monkeypatch.setattr(
        checkpoint.orbax, "load", lambda *a, **k: jax.tree.map(lambda x: x.astype(jnp.float32), load(*a, **k))
    )
    with pytest.raises(RuntimeError, match=r"params/scale: float32\[32\] in the checkpoint, bfloat16\[32\] wanted"):
        Checkpoints(tmp_path).restore(jax.tree.map(jnp.asarray, make_state(1)))


def test_a_directory_that_was_removed_is_noticed(tmp_path, caplog):
    directory = tmp_path / "checkpoints"
    checkpoints = Checkpoints(directory)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state(step), {})
    checkpoints.wait()
    remove(directory / "2")
    checkpoints.save(4, make_state(4), {})
    checkpoints.wait()
    assert f"another program removed steps from {directory}: 2" in warnings_in(caplog)
    remove(directory)
    with pytest.raises(FileNotFoundError, match=f"{directory} existed with steps 3; 4 and has been removed: step 5"):
        checkpoints.save(5, make_state(5), {})
    assert not directory.exists()


def remove(path: Path) -> None:
    for entry in path.iterdir():
        remove(entry) if entry.is_dir() else entry.unlink()
    path.rmdir()


# ---- other processes: limits, permissions, kills

PRELUDE = """
import logging, os, pathlib, resource, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from bert_jax.training.checkpoint import checkpoints as checkpoint, manifest, step_directory
from bert_jax.training.checkpoint.checkpoints import Checkpoints, SaveError
from tests.training.checkpoint.test_checkpoint_faults import make_state
directory = pathlib.Path(sys.argv[1])
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def die_at(removal):
    # Among the removals of a step: 1 is the first file or folder after the manifest, 4 the last.
    path = type(manifest.epath.Path('/tmp'))
    left = [removal]
    def dying(method):
        def call(self, *arguments, **options):
            if self.parent.name == '1' or self.name == '1':
                left[0] -= 1
                if left[0] < 0:
                    die()
            return method(self, *arguments, **options)
        return call
    path.rmtree, path.unlink = dying(path.rmtree), dying(path.unlink)
"""


def start(script: str, directory: Path, *arguments: str, **options) -> subprocess.Popen:
    code = PRELUDE + textwrap.dedent(script)
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory), *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Exit code and output; a process that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the process hangs: {process.communicate()}")
    return process.returncode, out, err


def test_what_a_kill_left_of_trying_to_write_is_removed(tmp_path):
    """The empty file by which a save tries whether it may write."""
    save(tmp_path, 1)
    (tmp_path / ".writable-0").touch()
    save(tmp_path, 2, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def assert_goes_on(directory: Path, newest: int) -> None:
    """The newest step is whole, and a new process can save after it and leaves no rubbish."""
    restored = Checkpoints(directory).restore_arrays()
    assert restored.step == newest
    assert_is_state_of(newest, restored.state)
    save(directory, newest + 1, newest + 2, keep=2)
    assert sorted(path.name for path in directory.iterdir()) == sorted([str(newest + 1), str(newest + 2)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "newest"),
    [
        # Nothing of step 3 is there, or only what Orbax calls temporary.
        ("checkpoints.save(3, make_state(3), {}); die()", 2),
        # Orbax has committed the step, which has no manifest yet.
        ("checkpoint.write_manifest = die; checkpoints.save(3, make_state(3), {}); checkpoints.wait()", 2),
        ("manifest._encode = die; checkpoints.save(3, make_state(3), {}); checkpoints.wait()", 2),
        (
            "type(manifest.epath.Path('/tmp')).rename = die; checkpoints.save(3, make_state(3), {}); checkpoints.wait()",
            2,
        ),
        # The step counts, older ones are being deleted: before it, and at several points of it.
        ("checkpoint.StepDirectory.prune = die; checkpoints.save(3, make_state(3), {}); checkpoints.wait()", 3),
        ("die_at(1); checkpoints.save(3, make_state(3), {}); checkpoints.wait()", 3),
        ("die_at(3); checkpoints.save(3, make_state(3), {}); checkpoints.wait()", 3),
        ("die_at(4); checkpoints.save(3, make_state(3), {}); checkpoints.wait()", 3),
    ],
)
def test_a_kill_at_a_chosen_moment_leaves_the_last_whole_step(tmp_path, moment, newest):
    save(tmp_path, 1, 2)
    code, out, err = finish(start(f"checkpoints = Checkpoints(directory, keep=2)\n{moment}", tmp_path))
    assert code == -signal.SIGKILL, (out, err)
    assert_goes_on(tmp_path, newest)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.013, 0.037, 0.11, 0.23, 0.41])
def test_a_kill_at_any_moment_loses_no_step_that_was_reported(tmp_path, delay):
    script = """
        checkpoints = Checkpoints(directory, keep=2)
        for step in range(1, 10_000):
            checkpoints.save(step, make_state(step), {})
            checkpoints.wait()
            print(step, flush=True)
    """
    process = start(script, tmp_path)
    assert process.stdout is not None
    for _ in range(3):
        reported = process.stdout.readline()
    time.sleep(delay)
    process.kill()
    out, err = process.communicate()
    reported = int((reported + out).split()[-1])
    newest = Checkpoints(tmp_path).restore_arrays().step
    # The step after the last one reported may have been finished before its line was written.
    assert newest in (reported, reported + 1), err
    assert_goes_on(tmp_path, newest)


@pytest.mark.slow
def test_a_full_disk_ends_the_program_with_an_error_and_the_older_step_stays(tmp_path):
    script = """
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(1, make_state(1), {})
            checkpoints.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            checkpoints.save(2, make_state(2), {})
            if "retry" in sys.argv:
                try:
                    checkpoints.wait()
                except SaveError as error:
                    print("caught", error)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                checkpoints.save(2, make_state(2), {})
    """
    code, _, err = finish(start(script, tmp_path))
    assert code == 1
    assert "SaveError: step 2 was not saved" in err
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert_is_state_of(1, Checkpoints(tmp_path).restore_arrays().state)

    remove(tmp_path / "1")
    code, out, err = finish(start(script, tmp_path, "retry"))
    assert (code, "caught step 2 was not saved" in out) == (0, True), err
    assert_goes_on(tmp_path, 2)


def test_a_save_for_which_there_is_no_room_is_not_started(tmp_path, monkeypatch):
    save(tmp_path, 1)
    found = os.statvfs(tmp_path)
    full = SimpleNamespace(f_bfree=found.f_bfree, f_bavail=1, f_frsize=100, f_blocks=found.f_blocks)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full)
        with (
            Checkpoints(tmp_path) as checkpoints,
            pytest.raises(
                SaveError, match=r"step 2 was not saved .*: No space left on device \(0\.0 MB free, 0\.\d MB needed"
            ),
        ):
            checkpoints.save(2, make_state(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    save(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_missing_permission_is_an_error_and_does_not_hang_the_exit(tmp_path, moment):
    """Before: the check finds it. After the check, just before Orbax: its threads must not wait for 300 s."""
    directory = tmp_path / "checkpoints"
    save(directory, 1)
    script = """
        if os.getuid() == 0:
            os.setuid(65534)
        checkpoints = Checkpoints(directory)
        make_room = checkpoints._directory.make_room
        def close_the_door(*arguments):
            make_room(*arguments)
            directory.chmod(0o555)
        if "after" in sys.argv:
            checkpoints._directory.make_room = close_the_door
        else:
            directory.chmod(0o555)
        with checkpoints:
            checkpoints.save(2, make_state(2), {})
    """
    for path in (tmp_path, *tmp_path.parents):
        if os.getuid() == 0 and "/pytest-of-" in str(path):
            path.chmod(0o755)
    if os.getuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, 65534, 65534)
    code, _, err = finish(start(script, directory, moment))
    directory.chmod(0o755)
    assert code == 1
    assert "SaveError: step 2 " in err
    assert "Permission denied" in err
    assert_is_state_of(1, Checkpoints(directory).restore_arrays().state)


def test_the_next_start_deletes_the_old_steps_that_a_killed_program_left(tmp_path):
    save(tmp_path, 1, 2, 3, 4)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.delete_old()
        assert checkpoints.steps() == [3, 4]
    assert_is_state_of(4, Checkpoints(tmp_path).restore_arrays().state)


@pytest.mark.slow
def test_a_program_that_ends_without_closing_still_finishes_its_save_or_says_that_it_did_not(tmp_path):
    code, out, err = finish(start("Checkpoints(directory).save(1, make_state(1), {})", tmp_path))
    assert Checkpoints(tmp_path).steps() == [1] or "step 1 was not saved" in err, (code, out, err)


@pytest.mark.slow
def test_two_processes_save_and_restore_one_state(tmp_path):
    script = """
        rank, port = int(sys.argv[2]), sys.argv[3]
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank, coordinator_bind_address=f"127.0.0.1:{port}")
        mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
        split = jax.NamedSharding(mesh, jax.P("data"))
        whole = jax.NamedSharding(mesh, jax.P())
        def place(x):
            sharding = whole if x.ndim == 0 else split
            return jax.make_array_from_callback(x.shape, sharding, lambda index: np.asarray(x)[index])
        with Checkpoints(directory, keep=2, timeout_seconds=60) as checkpoints:
            try:
                checkpoints.restore(jax.tree.map(place, make_state(0)))
            except FileNotFoundError:
                print("nothing yet")
            for step in (1, 2, 3):
                state = jax.tree.map(place, make_state(step))
                checkpoints.save(step, state, {"processes": jax.process_count()})
            checkpoints.wait()
            assert checkpoints.steps()[-1] == 3
            try:
                checkpoints.save(2, state, {})
            except ValueError as error:
                print("refused")
            if rank == 0:
                path = directory / "3" / "state" / "_METADATA"
                path.write_bytes(path.read_bytes() + b"?")
            restored = checkpoints.restore(state)
        assert restored.step == 2, restored.step
        for leaf, expected in zip(jax.tree.leaves(restored.state), jax.tree.leaves(make_state(2))):
            for shard in leaf.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(expected)[shard.index])
        from bert_jax.training.checkpoint import hashing
        def fail(path):
            raise OSError("cannot read")
        digest, hashing.file_digest = hashing.file_digest, hashing.file_digest if rank == 0 else fail
        with Checkpoints(directory, keep=2, timeout_seconds=60) as checkpoints:
            checkpoints.restore(state)
            checkpoints.save(5, state, {})
            try:
                checkpoints.wait()
            except SaveError as error:
                print(error)
        hashing.file_digest = digest
        print("done", flush=True)
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [start(script, tmp_path, str(rank), port) for rank in range(2)]
    outcomes = [finish(process) for process in processes]
    for rank, (code, out, err) in enumerate(outcomes):
        where = "process 1: " if rank == 0 else ""
        failed = f"step 5 was not saved to {tmp_path}: OSError: {where}{'OSError: ' * (rank == 0)}cannot read"
        assert (code, out.splitlines()[-4:]) == (0, ["nothing yet", "refused", failed, "done"]), err
    assert not (tmp_path / "5").exists()
    restored = Checkpoints(tmp_path).restore_arrays()
    assert (restored.step, restored.metadata) == (2, {"processes": 2})
    assert_is_state_of(2, restored.state)
    record = json.loads((tmp_path / "2" / "manifest.json").read_text())
    assert any("ocdbt.process_1" in name for name in record["files"])
