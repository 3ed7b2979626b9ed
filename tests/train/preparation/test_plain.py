"""`--sentences plain` prepares the plain sentences alone, and says how much it left out."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining.examples import tokens_of
from bert_jax.data.pretraining.manifest import shard_folder
from bert_jax.data.pretraining.shards import open_shard
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from train.preparation.directory import prepare
from train.preparation.options import PrepareOptions
from train.preparation.show import print_report

PLAIN = [
    f"{one} {two} {three} the {four}."
    for one, two, three, four in itertools.product(
        ("The", "Every", "My"), ("cat", "old dog", "bird"), ("sees", "leaves", "hears"), ("house", "tree", "river")
    )
]
OTHERS = ["Born 1921 in Xanadu.", "See also: Quux (zebra).", "Zorro, Quixote, Xerxes and Ulysses."]


@pytest.fixture
def options(tmp_path) -> dict:
    lines = []
    for number in range(0, len(PLAIN), 3):
        text = " ".join([OTHERS[0], *PLAIN[number : number + 3], OTHERS[1]])
        lines.append(json.dumps({"text": f"{text}\n{OTHERS[2]}"}))
    lines.append(json.dumps({"text": OTHERS[2]}))
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "inputs": (str(tmp_path / "text.jsonl"),),
        "output": tmp_path / "out",
        "vocab_size": 80,
        "sentences": "plain",
        "objective": "none",
        "rows": "sentences",
        "max_seq_length": (16,),
        "held_out": 0.0,
        "workers": 1,
    }


def test_a_row_is_a_plain_sentence_and_the_vocabulary_is_theirs(options, capsys):
    manifest = prepare(PrepareOptions(**options))
    tokenizer = Tokenizer.load(options["output"] / "tokenizer")
    shard = open_shard(options["output"] / shard_folder("train", 0))
    assert len(shard.documents) - 1 == len(PLAIN) // 3
    index = np.load(options["output"] / "train" / "examples-16" / "00000.npy")
    rows = [tokens_of(row, {0: shard}, cls_token_id=2, sep_token_id=3)[0] for row in index]
    expected = [[2, *tokenizer.encode_flat([sentence])[0].tolist(), 3] for sentence in PLAIN]
    assert sorted(row.tolist() for row in rows) == sorted(expected)
    words = (options["output"] / "tokenizer" / "vocab.txt").read_text().split()
    others = {"z", "x", "q", "1", "("}  # the model will be given other sentences, too
    assert others <= set(words) and not any(others & set(word) for word in words if len(word.removeprefix("##")) > 1)
    print_report(manifest, title="done")
    assert f"left out: {len(PLAIN) + 1} sentences that are not plain" in capsys.readouterr().err


def test_it_is_part_of_the_result_and_checked(options):
    found = prepare(PrepareOptions(**options))["report"]["not_plain"]
    texts = [json.loads(line)["text"] for line in Path(*options["inputs"]).read_text().splitlines()]
    kept = sum(len(sentence) for sentence in PLAIN) + len(PLAIN) * 2 // 3  # and the breaks between them
    assert found == {"sentences": len(PLAIN) + 1, "text_share": pytest.approx(1 - kept / sum(map(len, texts)))}
    with pytest.raises(UserError, match=r"made with other options: sentences 'plain' \(now None\)"):
        prepare(PrepareOptions(**options | {"sentences": "all"}))
    with pytest.raises(UserError, match="--sentences: found 'short', expected one of all, plain"):
        PrepareOptions(**options | {"sentences": "short"})
    google = options | {"recipe": "google", "objective": "nsp", "rows": "doc-sentences"}
    with pytest.raises(UserError, match="--sentences: --recipe google takes the text as it is; leave one of them out"):
        PrepareOptions(**google)


def test_text_without_a_plain_sentence_says_so(options, tmp_path):
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in OTHERS))
    with pytest.raises(UserError, match=r"no sentence is plain .* --sentences all takes all"):
        prepare(PrepareOptions(**options))


@pytest.mark.slow
def test_enough_plain_text_is_held_out_of_documents_with_little_of_it(options, tmp_path):
    texts = [
        f"{sentence} My old friend {number} reads.\n" + f"{OTHERS[0]}\n" * 400
        for number in range(40)
        for sentence in PLAIN[:2]
    ]
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    manifest = prepare(PrepareOptions(**options | {"held_out": None}))
    assert manifest["report"]["held-out"]["documents"] == len(texts) // 10  # two would do if all of their text counted
