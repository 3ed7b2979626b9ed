"""The program opens the published files of every task, with as many examples as their authors count."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.table import open_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer(data_dir: Path, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("vocabulary")
    packed = data_dir / "checkpoints" / "vocab" / "bert-base-uncased-vocab.txt.gz"
    (folder / "vocab.txt").write_bytes(gzip.decompress(packed.read_bytes()))
    return Tokenizer.load(folder, cased=False)


def opened(tokenizer: Tokenizer, data_dir: Path, task: str, **fields: Any) -> Any:
    """Opens a task; `data`, `train`, `dev` and `test` are paths below the folder of the data."""
    paths: dict[str, Any] = {name: str(data_dir / "finetune" / path) for name, path in fields.items()}
    config = FinetuneConfig(task=task, max_length=48, stride=24, max_question_length=16, **paths)
    return open_task(config, tokenizer)


# task -> its folder, labels, and examples of train (whole where a row is an example), dev and test. GLUE's sizes:
# https://arxiv.org/abs/1804.07461, table 1; this copy of MRPC lacks a row of the 3,668, that of QNLI its train file.
CLASSES = {
    "cola": ("glue/CoLA", ("0", "1"), 8_551, 1_043, 1_063),
    "sst2": ("glue/SST-2", ("0", "1"), 67_349, 872, 1_821),
    "mrpc": ("glue/MRPC", ("0", "1"), 3_667, 408, 1_725),
    "stsb": ("glue/STS-B", ("LABEL_0",), 5_749, 1_500, 1_379),
    "rte": ("glue/RTE", ("entailment", "not_entailment"), 2_490, 277, 3_000),
    "wnli": ("glue/WNLI", ("0", "1"), 635, 71, 146),
    "snli": ("snli", ("contradiction", "entailment", "neutral"), 21_605, 9_842, 9_824),
    "korsts": ("korean/korsts", ("LABEL_0",), 5_749, 1_500, 1_379),
    "codah": ("multiple_choice/codah/fold_0", ("LABEL_0",), 1_665, 556, 555),
    "arc": ("multiple_choice/arc", ("LABEL_0",), 2_251, 570, 2_376),
}


@pytest.mark.parametrize("task", CLASSES)
def test_a_folder_as_it_is_published(task: str, tokenizer: Tokenizer, data_dir: Path):
    folder, labels, train, dev, test = CLASSES[task]
    found = opened(tokenizer, data_dir, task, data=folder)
    assert found.labels == labels
    assert len(found.train) == train
    assert [len(split.examples) for split in found.evaluations] == [dev]
    assert [len(split.examples) for split in found.tests] == [test]
    for split in (*found.evaluations, *found.tests):
        assert len(split.encoded) == len(split.examples)
        assert split.encoded.lengths.max() <= 48
        assert split.labelled == (task in ("snli", "korsts", "codah", "arc") or split in found.evaluations)


# The others lack a file, or have another name here: task -> files, and how many examples the first evaluation has.
GIVEN = {
    "qnli": ({"train": "glue/QNLI/dev.tsv.gz", "data": "glue/QNLI"}, 5_463),
    "nsmc": ({"data": "korean/nsmc"}, 5_825),
    "kornli": ({"train": "korean/kornli/xnli.test.ko.tsv.gz", "data": "korean/kornli"}, 2_490),
    "hellaswag": (
        dict.fromkeys(("train", "dev"), "multiple_choice/hellaswag/hellaswag_val_1000.jsonl.gz"), 1_000,
    ),
    "wnut17": ({"data": "ner/wnut17"}, 1_009),
    "klue-ner": (dict.fromkeys(("train", "dev"), "ner/klue-ner-v1.1/klue-ner-v1.1_dev.tsv.gz"), 5_000),
    "naver-ner": (dict.fromkeys(("train", "dev"), "ner/naver-ner/test.tsv.gz"), 9_000),
    "squad1": ({"train": "squad/squad1-form-train-slice.json.gz", "data": "squad"}, 10_570),
    "squad2": ({"train": "squad/squad2-train-slice.json.gz", "dev": "squad/squad2-dev-half.json.gz"}, 6_078),
    "korquad": (dict.fromkeys(("train", "dev"), "squad/KorQuAD_v1.0_dev.json.gz"), 5_774),
}  # fmt: skip


@pytest.mark.parametrize(
    "task", [*(name for name in GIVEN if name != "korquad"), pytest.param("korquad", marks=pytest.mark.exhaustive)]
)
def test_files_that_are_named(task: str, tokenizer: Tokenizer, data_dir: Path):
    files, dev = GIVEN[task]
    found = opened(tokenizer, data_dir, task, **files)
    split = found.evaluations[0]
    assert len(split.examples) == dev
    assert split.labelled and len(found.train)
    if task in ("squad1", "squad2"):
        assert set(split.windows.question) == set(range(dev))  # none is lost
        answered = np.unique(split.windows.question[split.encoded.targets["end_positions"] > 0])
        possible = sum(bool(question.answers) for question in split.examples)
        assert len(answered) > 0.97 * possible  # but for answers longer than what windows share


def test_pairs_of_snli_on_which_its_readers_did_not_agree_are_left_out(tokenizer: Tokenizer, data_dir: Path):
    """SNLI's own form, JSON lines; gold_label is "-" for 16 of these 1,289 pairs (https://arxiv.org/abs/1508.05326, 2.2)."""
    folder = data_dir / "finetune" / "snli"
    sample = "snli_1.0_dev_sample.jsonl.gz"
    if not (folder / sample).is_file():
        pytest.skip(f"{sample} is not among the real data at {folder}")
    found = opened(tokenizer, data_dir, "snli", data="snli", dev=f"snli/{sample}", test=f"snli/{sample}")
    for split in (*found.evaluations, *found.tests):
        assert split.labelled and len(split.examples) == 1_289 - 16


@pytest.mark.parametrize("language", ["en", "zh"])
def test_xquad_is_in_squads_form(language: str, tokenizer: Tokenizer, data_dir: Path):
    path = f"squad/xquad.{language}.json.gz"
    assert len(opened(tokenizer, data_dir, "squad1", train=path, dev=path).evaluations[0].examples) == 1_190
