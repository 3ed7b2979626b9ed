"""--fields lists every field of a config, as a word that sets it, with a meaning."""

import dataclasses
import json
import shlex

import pytest

from train.finetune import main as finetune
from train.finetuning.recipe import FinetuneConfig
from train.pretrain import main as pretrain
from train.pretraining.recipe import PretrainConfig
from train.run.config import load_recipe, override
from train.run.fields import fields_of


@pytest.mark.parametrize("kind", [PretrainConfig, FinetuneConfig])
def test_every_field_has_a_meaning(kind):
    """Nobody who adds a field can forget it: --fields, the completion and this test read the same docstrings."""
    rows = fields_of(kind())
    assert [row.path for row in rows if len(row.meaning) < 8] == []
    names = {row.path.split(".")[0] for row in rows}
    assert names == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(("main", "config"), [(pretrain, "configs/tiny.py"), (finetune, "configs/finetune.py")])
def test_each_line_is_a_word_that_the_program_takes(main, config, capsys):
    kind = PretrainConfig if main is pretrain else FinetuneConfig
    given = ["optimizer.learning_rate=0.125", "seed=7"]
    with pytest.raises(SystemExit) as end:
        main([config, *given, "--fields"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    words = dict(shlex.split(line.split("  ")[0])[0].split("=", 1) for line in lines)
    assert words["seed"] == "7" and words["optimizer.learning_rate"] == "0.125"
    own = override(load_recipe(config, kind), dict(word.split("=", 1) for word in given))
    # setting a field of a config that is None would make one
    of_none = {f"{field.name}." for field in dataclasses.fields(own) if getattr(own, field.name) is None}
    assert override(own, {name: value for name, value in words.items() if not name.startswith(tuple(of_none))}) == own


def test_fields_as_json(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        pretrain(["configs/tiny.py", "phases=((128, 8, 3000),)", "--fields", "--json"])
    rows = {row["path"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["phases"]["value"] == [[128, 8, 3000]]
    assert rows["optimizer.total_steps"]["value"] == 3000  # those of the phases
    assert set(rows["model.hidden_size"]) == {"path", "value", "type", "meaning"}
