"""`benchmarks.plan_pieces`: which programs it compiles."""

import pytest

from benchmarks import plan_pieces
from bert_jax.errors import UserError
from train.planning.machines import read_topology

RECIPE = "configs/tiny.py"


@pytest.mark.parametrize(
    ("only", "rows"),
    [
        (["attention kernel"], ["without: attention kernel"]),
        (["ZeRO-1", "all"], ["all", "without: ZeRO-1"]),
    ],
)
def test_only_what_is_asked_for_is_compiled(only, rows, monkeypatch):
    compiled = []
    monkeypatch.setattr(plan_pieces, "_row", lambda name, *_: compiled.append(name))
    plan_pieces.print_table(read_topology("v5e:4x4"), RECIPE, {"mesh.zero": "8"}, only)
    assert compiled == rows


def test_an_unknown_piece_is_one_line():
    with pytest.raises(UserError, match="--only: found kernel; expected one of all, attention kernel, "):
        plan_pieces.print_table(read_topology("v5e:1x1"), RECIPE, {}, ["kernel"])
