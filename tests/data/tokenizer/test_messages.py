"""What a tokenizer's files contain is quoted in messages briefly and in one line, whoever wrote them."""

import json
from pathlib import Path

import pytest

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.tokenizer.tokenizer_folders import byte_level_files, write
from tests.inference.tasks.task_folders import PIECES

LONG = "x\x1b[31m\n\u202e" * 20_000


def changed(folder: Path, file: str, change) -> None:
    value = json.loads((folder / file).read_text(encoding="utf-8"))
    change(value)
    (folder / file).write_text(json.dumps(value), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("vocab.json", lambda ids: ids.update({LONG: "a"})),
        ("vocab.json", lambda ids: ids.update({LONG: LONG})),
        ("vocab.json", lambda ids: ids.update({LONG: 5, LONG + "y": 5})),
        ("tokenizer_config.json", lambda settings: settings.update(tokenizer_class=LONG)),
        ("merges.txt", LONG),
        ("merges.txt", LONG.replace("\n", "") + " b"),
    ],
)
def test_a_message_on_a_byte_level_tokenizer_is_short(tmp_path, file, change):
    write(tmp_path, **byte_level_files())
    if isinstance(change, str):
        (tmp_path / file).write_text("#version: 0.2\n" + change, encoding="utf-8")
    elif (tmp_path / file).exists():
        changed(tmp_path, file, change)
    else:
        settings: dict[str, object] = {}
        change(settings)
        (tmp_path / file).write_text(json.dumps(settings))
    check(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file["added_tokens"][0].update(content=LONG),
        lambda file: file["added_tokens"][0].update(id=LONG),
        lambda file: file["model"]["vocab"].update({LONG: 1}),
        lambda file: file["model"]["vocab"].update({LONG: -1}),
        lambda file: file["model"].update(type=LONG),
    ],
)
def test_a_message_on_a_tokenizer_json_is_short(tmp_path, change):
    Tokenizer.from_vocabulary(PIECES, cased=False).save(tmp_path)
    changed(tmp_path, "tokenizer.json", change)
    check(tmp_path)


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json", "tokenizer_config.json"])
def test_a_pointer_of_git_lfs_in_place_of_a_file_is_named(tmp_path, file):
    write(tmp_path, **{"vocab.txt": "\n".join(PIECES), "tokenizer_config.json": "{}"})
    (tmp_path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 231508\n")
    with pytest.raises(UserError, match=rf"{file}: a Git LFS pointer, not the file itself; .*git lfs pull"):
        Tokenizer.load(tmp_path)


def check(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        Tokenizer.load(folder)
    line = str(caught.value).replace(str(folder), "")
    assert len(line) < 500 and line.isprintable()
