"""Exports are replaced in one step, and what killed exports left is removed."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.formats import new_folder as new_folder_module
from bert_jax.formats.new_folder import CARD, CARD_MARK, new_folder, refuse_foreign, remove_leftovers
from tests.root import ROOT


def export(target: Path, text: str) -> None:
    with new_folder(target) as folder:
        (folder / CARD).write_text(f"{CARD_MARK} {text}")


@pytest.fixture(params=["exchanged", "renamed"])
def way(request, monkeypatch) -> str:
    if request.param == "renamed":  # as on a file system without RENAME_EXCHANGE
        monkeypatch.setattr(new_folder_module, "_exchange", lambda one, other: False)
    return request.param


def test_a_reader_always_finds_an_export(tmp_path: Path):
    target, missing, done = tmp_path / "export", [], threading.Event()
    export(target, "0")

    def read() -> None:
        while not done.is_set():
            try:
                assert CARD_MARK in (target / CARD).read_text()
            except FileNotFoundError:
                missing.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(100):
        export(target, str(number))
    done.set()
    reader.join()
    assert not missing
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_the_export_is_replaced_and_nothing_is_left(tmp_path: Path, way: str):
    for text in ("one", "two"):
        export(tmp_path / "export", text)
        assert text in (tmp_path / "export" / CARD).read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_what_a_killed_export_left_is_removed_by_the_next_and_a_live_one_stays(tmp_path: Path):
    target = tmp_path / "export"
    script = f"""
import os, signal
from pathlib import Path
from bert_jax.formats.new_folder import new_folder
with new_folder({str(target)!r}) as folder:
    (folder / "README.md").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".export.writing-")
    other = tmp_path / ".export2.writing-00000000"
    other.mkdir()
    with new_folder(target) as live:
        assert not left.exists()
        (live / CARD).write_text(CARD_MARK)
        remove_leftovers(target)
        assert live.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"export", other.name}


def test_an_export_needs_no_locks_and_without_them_removes_nothing(tmp_path: Path, monkeypatch):
    left = tmp_path / ".export.writing-00000000"
    left.mkdir()

    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(new_folder_module.fcntl, "flock", refuse)
    export(tmp_path / "export", "one")
    assert {path.name for path in tmp_path.iterdir()} == {"export", left.name}


def test_a_kill_between_two_renames_leaves_the_former_export_to_be_found(tmp_path: Path, monkeypatch):
    target = tmp_path / "export"
    export(target, "one")
    monkeypatch.setattr(new_folder_module, "_exchange", lambda one, other: False)
    rename, calls = Path.rename, iter(range(9))

    def kill(path: Path, to: Path) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", kill)
        with pytest.raises(KeyboardInterrupt):
            export(target, "two")
    assert not target.exists()
    remove_leftovers(target)
    assert "one" in (target / CARD).read_text()


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(UserError, match=r"caf\\xe9': the name is not UTF-8"), new_folder(folder):
        pass
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("target", "such"), [(".", "model"), ("a/..", r"a/\.\./model")])
def test_a_path_without_a_name_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch, target, such):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with pytest.raises(UserError, match=f"expected the name of a folder to write, such as {such}"):
        refuse_foreign(Path(target))


def test_what_macos_adds_to_an_export_does_not_make_it_foreign(tmp_path: Path):
    export(tmp_path / "export", "one")
    for name in (".DS_Store", f"._{CARD}", "._model.safetensors"):
        (tmp_path / "export" / name).write_bytes(b"\0\5\x16\7")
    export(tmp_path / "export", "two")
    assert [path.name for path in (tmp_path / "export").iterdir()] == [CARD]
    (tmp_path / "export" / ".git").write_text("a worktree")
    with pytest.raises(UserError, match=r"holds '\.git'; only a former export"):
        export(tmp_path / "export", "three")


def test_a_link_is_said_to_be_one(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(UserError, match="link: is a link; name the folder itself"), new_folder(tmp_path / "link"):
        pass


def test_a_folder_that_somebody_fills_during_the_export_is_not_replaced(tmp_path: Path, way: str):
    target = tmp_path / "export"

    def fill() -> None:
        with new_folder(target) as folder:
            (folder / CARD).write_text(CARD_MARK)
            target.mkdir()
            (target / "notes.txt").write_text("precious")

    with pytest.raises(UserError, match=r"holds 'notes\.txt'"):
        fill()
    assert os.listdir(target) == ["notes.txt"] and os.listdir(tmp_path) == ["export"]
