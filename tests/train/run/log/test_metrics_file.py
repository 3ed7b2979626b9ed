"""metrics.jsonl and run.log over kills and damage: no row is lost or made twice, and no strange file is overwritten."""

import json
import os
from pathlib import Path

import pytest
from etils import epath

from bert_jax.errors import UserError
from bert_jax.formats.training_record import read_metrics
from train.run.log import outlet
from train.run.log.metrics_file import MetricsFile
from train.run.log.outlet import GrowingFile


def rows(*steps: int) -> list[dict]:
    return [{"kind": "train", "step": step, "loss": 0.1 * step} for step in steps]


def saved_at(path: Path, *steps: int) -> dict:
    """metrics.jsonl with these rows, and what a checkpoint records of it."""
    metrics = MetricsFile(epath.Path(path), print, step=0, written=None)
    for row in rows(*steps):
        metrics.add(row)
    written = metrics.written()
    metrics.close()
    return written


def continued(path: Path, step: int, written: dict | None) -> MetricsFile:
    metrics = MetricsFile(epath.Path(path), print, step=step, written=written)
    metrics.close()
    return metrics


def test_a_resumed_run_keeps_the_rows_of_its_checkpoint_byte_for_byte_and_drops_those_after_it(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    written = saved_at(path, 2, 4)
    kept = path.read_bytes()
    assert (written["bytes"], len(kept)) == (len(kept), len(kept))
    for later in (b"", b'{"kind": "train", "step": 6, "loss": 1.0}\n', b'{"kind": "tr', b"\xff\xfe"):
        path.write_bytes(kept + later)
        metrics = continued(path, 4, written)
        assert (metrics.rows, metrics.problem, path.read_bytes()) == (rows(2, 4), None, kept)


def test_rows_that_were_read_share_the_memory_of_their_names(tmp_path: Path):
    """A row has some twenty: of a million rows they took two gigabytes."""
    path = tmp_path / "metrics.jsonl"
    written = saved_at(path, 2, 4)
    for found in (continued(path, 4, written).rows, read_metrics(path)):
        first, last = map(list, found)
        assert first == last and all(one is other for one, other in zip(first, last, strict=True))


def test_a_run_without_checkpoints_makes_its_rows_again(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    saved_at(path, 2, 4)
    with path.open("ab") as file:
        file.write(b'{"kind": "tr')
    metrics = continued(path, 0, None)
    assert (metrics.rows, metrics.problem, path.read_bytes()) == ([], None, b"")
    assert [found.name for found in tmp_path.iterdir()] == ["metrics.jsonl"]


DAMAGE = {
    "a flipped digit": lambda whole: whole.replace(b'"step": 4, "loss": 0.4', b'"step": 4, "loss": 0.6'),
    "a stray byte": lambda whole: whole[:20] + b"\xff" + whole[21:],
    "another value": lambda whole: b"[1,2]\n" + whole,
    "a number": lambda whole: whole.replace(b'{"kind": "train", "step": 2', b'7 {"kind": "train", "step": 2'),
    "zeros": lambda whole: whole[:10] + bytes(20) + whole[30:],
    "truncated": lambda whole: whole[:-3],
    "a lost row": lambda whole: whole.split(b"\n", 1)[1],
    "a row twice": lambda whole: whole.split(b"\n")[0] + b"\n" + whole,
    "a step that is no number": lambda whole: whole.replace(b'"step": 2,', b'"step": [],'),
    "deep nesting": lambda whole: b"[" * 100_000 + b"\n" + whole,
    "emptied": lambda whole: b"",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_metrics_are_named_and_what_was_there_stays(tmp_path: Path, kind: str):
    path = tmp_path / "metrics.jsonl"
    written = saved_at(path, 2, 4, 6)
    damaged = DAMAGE[kind](path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    metrics = continued(path, 6, written)
    assert metrics.problem is not None
    assert metrics.problem.startswith("metrics.jsonl is damaged: it has not the rows that were written up to step 6")
    assert [json.loads(line) for line in path.read_text().splitlines()] == metrics.rows
    aside = [found for found in tmp_path.iterdir() if found != path]
    assert [found.read_bytes() for found in aside] == ([damaged] if damaged else [])
    assert all(found.name in metrics.problem for found in aside)


def test_a_damaged_file_is_named_before_the_first_checkpoint_too(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    saved_at(path, 2, 4)
    path.write_bytes(b"\xff\n" + path.read_bytes())
    metrics = continued(path, 0, None)
    assert metrics.rows == []
    assert "damaged" in str(metrics.problem)


@pytest.mark.parametrize("content", [b"dear diary\n", b'{"loss": 1}\n{"loss": 2}\n', b"\x00\x01\x02", b"[1, 2]\n"])
@pytest.mark.parametrize("resumed", [True, False])
def test_the_metrics_of_somebody_else_are_not_emptied(tmp_path: Path, content: bytes, resumed: bool):
    path = tmp_path / "metrics.jsonl"
    written = saved_at(path, 2) if resumed else None
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"metrics\.jsonl: has no row of metrics.*move it away"):
        continued(path, 2 if resumed else 0, written)
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_kill_while_metrics_are_replaced_loses_none(tmp_path: Path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    written = saved_at(path, 2, 4, 6)
    path.write_bytes(path.read_bytes()[:-1])
    damaged = path.read_bytes()
    replace, killed = os.replace, iter(range(2))

    def kill(source: str, target: str) -> None:
        if next(killed) == 1:  # when metrics.jsonl itself is replaced
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        continued(path, 6, written)
    assert path.read_bytes() == damaged
    monkeypatch.undo()
    assert continued(path, 6, written).rows == rows(2, 4, 6)


def test_rows_are_on_the_disk_before_a_checkpoint_says_so(tmp_path: Path, monkeypatch):
    path, synced = tmp_path / "metrics.jsonl", []
    monkeypatch.setattr(outlet.os, "fsync", lambda descriptor: synced.append(path.read_bytes()))
    written = saved_at(path, 2, 4)
    assert [len(content) for content in synced] == [written["bytes"]]


def test_a_log_with_strange_bytes_is_continued_as_it_is(tmp_path: Path):
    path = epath.Path(tmp_path / "run.log")
    path.write_bytes(b"one\n\xff\xfe\x00\nunfin")
    lines = GrowingFile(path, print)
    lines.add(b"two\n")
    lines.close()
    assert path.read_bytes() == b"one\n\xff\xfe\x00\nunfin\ntwo\n"


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.log"])
def test_links_pipes_and_folders_in_place_of_a_log_are_refused_at_once(tmp_path: Path, name: str):
    path = tmp_path / name
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")

    def opened() -> None:
        GrowingFile(epath.Path(path), print) if name == "run.log" else continued(path, 0, None)

    def refused(what: str) -> None:
        with pytest.raises(UserError, match=rf"{name}: is {what}; expected a file"):
            opened()
        path.unlink() if not path.is_dir() else path.rmdir()

    path.symlink_to(mine)
    refused("a symbolic link")
    assert mine.read_text() == "mine"
    path.symlink_to("/dev/zero")
    refused("a symbolic link")
    os.mkfifo(path)
    refused("a named pipe")
    path.mkdir()
    refused("a folder")
