"""A sample of the campaign that damages files: python -m tests.faults.run damage makes all of it."""

from pathlib import Path

import pytest

from bert_jax.data.pretraining import shards
from tests.faults import damage


@pytest.mark.slow
def test_damaged_files_are_refused_by_name_or_repaired_with_a_line(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", shards.BLOCK_BYTES)  # the campaign changes it
    subjects = [
        damage.prepared_data(tmp_path, "nsp", ["--objective", "nsp"], 20),
        damage.checkpoints(tmp_path, 6),
        *damage.files_of_a_run(tmp_path, 16),
    ]
    found = []
    for subject in subjects:
        good, _ = subject.read(subject.folder)
        found += [damage.outcome(subject, good, f"sample/{number}", tmp_path) for number in range(subject.cases)]
    assert [outcome for outcome in found if not outcome.held] == []
    assert {"refused by name", "repaired or passed over, with a line"} <= {outcome.ended for outcome in found}


def test_the_campaign_notices_what_is_silently_different(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_bytes(bytes(64))
    blind = damage.Subject("a reader that checks nothing", tmp_path / "kept", ["file"], lambda p: (_read(p), ""), 0)
    found = [damage.outcome(blind, bytes(64), f"blind/{number}", tmp_path) for number in range(40)]
    assert {"silently different", "harmless, equal"} <= {outcome.ended for outcome in found}
    assert all(outcome.held == (outcome.ended in ("harmless, equal", "refused by name")) for outcome in found)


def _read(folder: Path) -> bytes:
    from bert_jax.files import read_file

    return read_file(folder / "file")
