"""The kinds of input of the campaign `hostile`: for each, files that its readers accept, and the readers."""

import contextlib
import gzip
import io
import json
import random
import shutil
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DOCUMENTS = (
    "The house stood near the river. It was old, and nobody lived there now.\nIn winter the water rose.",
    "Cafés open early; 한국어 문장도 있다. 中文句子也有。\nA line with \"quotes\", commas, and 3.14 numbers.",
    "Mr. Smith went to Washington. He came back in May.",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        make: writes the files into a folder.
        read: calls every reader of them.
        weight: its share of the cases.
        changes: whether a file, by its path in the folder, is changed; the others are there because readers need them.
        mend: makes a changed folder consistent again, such as sums over its files, sometimes.
        writes: `mend` or `read` changes other files of the folder.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    weight: float = 1
    changes: Callable[[str], bool] = lambda path: True
    mend: Callable[[Path, random.Random], object] = lambda folder, rng: None
    writes: bool = False


def consume(rows: Iterable[Any]) -> None:
    deque(rows, maxlen=0)


def write(files: Mapping[str, str | bytes | Any]) -> Callable[[Path], None]:
    """A maker of files by name: text and bytes as they are, anything else as JSON."""

    def make(folder: Path) -> None:
        for name, content in files.items():
            data = content if isinstance(content, str | bytes) else json.dumps(content)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return make


def each(read: Callable[[Path], object], pattern: str = "*") -> Callable[[Path], None]:
    """A reader of every file of a folder, which reads all of them although one is refused."""

    def reads(folder: Path) -> None:
        refused: Exception | None = None
        from bert_jax.errors import UserError

        for path in sorted(folder.glob(pattern)):
            try:
                read(path)
            except (UserError, FileNotFoundError) as error:
                refused = error
        if refused:
            raise refused

    return reads


# Configs


def _make_configs(folder: Path) -> None:
    from bert_jax.config import BertConfig

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    for number, (model_type, more) in enumerate(
        [
            ("bert", {"labels": ("a", "b", "c"), "pruned_heads": ((0, (1,)),)}),
            ("roberta", {"problem_type": "regression", "labels": ("x",)}),
            ("xlm-roberta", {}),
            ("albert", {"embedding_size": 8, "num_hidden_groups": 2}),
            ("distilbert", {"sinusoidal_pos_embds": True}),
            ("bert", {"is_decoder": True, "add_cross_attention": True, "position_embedding_type": "relative_key"}),
        ]
    ):
        config = BertConfig(**sizes, intermediate_size=24, model_type=model_type, **more)
        (folder / f"{number}.json").write_text(json.dumps(config.to_json() | {"architectures": ["BertModel"]}))
    google = {"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, **sizes}
    google |= {"initializer_range": 0.02, "intermediate_size": 24, "max_position_embeddings": 512, "type_vocab_size": 2}
    (folder / "google.json").write_text(json.dumps(google))


def _read_config(path: Path) -> None:
    from bert_jax.config import BertConfig

    config = BertConfig.from_json(path)
    assert BertConfig.from_json(json.loads(json.dumps(config.to_json()))).hidden_size == config.hidden_size
    str(config), config.layer_order, config.num_labels, config.longest_input, config.heads_of(0)


# Folders with models, in every format


def _model(folder: Path, **fields: Any) -> Path:
    from tests.inference.tasks.task_folders import export

    return export(folder / "made", "sequence-classification", **fields)


def _moved(folder: Path, made: Path) -> None:
    for path in made.iterdir():
        shutil.move(path, folder / path.name)
    shutil.rmtree(folder / "made")


def _make_safetensors(folder: Path) -> None:
    _moved(folder, _model(folder))


def _make_sharded(folder: Path) -> None:
    from bert_jax.formats.convert import convert

    made = _model(folder)
    convert(made, folder / "new", max_shard_size=1500)
    shutil.rmtree(folder / "made")
    _moved_up(folder / "new")


def _moved_up(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.move(path, folder.parent / path.name)
    folder.rmdir()


def _make_bin(folder: Path, *, legacy: bool) -> None:
    from bert_jax.formats.safetensors import TensorFile
    from tests.formats.torch.torch_files import save

    _make_safetensors(folder)
    with TensorFile(folder / "model.safetensors") as stored:
        save(folder / "pytorch_model.bin", {name: stored[name] for name in stored}, legacy)
    (folder / "model.safetensors").unlink()


def _make_tf1(folder: Path) -> None:
    from bert_jax.formats.convert import convert
    from tests.inference.tasks.task_folders import export

    made = export(folder / "made", "pretraining")
    convert(made, folder / "new", to="tf1")
    shutil.rmtree(folder / "made")
    _moved_up(folder / "new")


def _make_flax(folder: Path) -> None:
    from flax import serialization

    from bert_jax.formats.safetensors import TensorFile

    _make_safetensors(folder)
    tree: dict[str, Any] = {}
    with TensorFile(folder / "model.safetensors") as stored:
        for name in stored:
            *parents, last = name.split(".")
            array = stored[name]
            if last == "weight":
                last = "scale" if "LayerNorm" in name else "embedding" if "_embeddings" in name else "kernel"
                array = array.T if last == "kernel" else array
            inner = tree
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = np.ascontiguousarray(array)
    (folder / "flax_model.msgpack").write_bytes(serialization.msgpack_serialize(tree))
    (folder / "model.safetensors").unlink()


def _read_model(folder: Path) -> None:
    from bert_jax.formats.read import read_model
    from bert_jax.formats.source import open_source

    source = open_source(folder)
    read_model(source).report.check()


def _is_model_file(path: str) -> bool:
    return not path.startswith(("vocab", "merges", "tokenizer", "special", "README", "added"))


def _mend_tf1(folder: Path, rng: random.Random) -> None:
    """Half of the time writes the table of a changed index again, with the right sums, after a change of an entry."""
    from bert_jax.formats.tensorflow.table import read_table, write_table
    from tests.faults.mutations import of_bytes

    index = next(folder.glob("*.index"))
    if rng.random() < 0.5:
        return
    with contextlib.suppress(Exception):
        entries = dict(read_table(index.read_bytes()))
        key = rng.choice(list(entries))
        entries[key] = of_bytes(entries[key], rng)
        index.write_bytes(write_table(sorted(entries.items())))


# Tokenizers

_TEXTS = ("Hello world, held 中 [MASK].", "", "a\u0301 1,000 <mask> ﷺ", "x" * 300)


def _make_bert_tokenizer(folder: Path) -> None:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from tests.inference.tasks.task_folders import PIECES

    Tokenizer.from_vocabulary(PIECES, cased=False).save(folder)
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": len(PIECES)}))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 40}))
    (folder / "tokenizer.json").rename(folder / "of.json")


def _make_json_tokenizer(folder: Path) -> None:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from tests.inference.tasks.task_folders import PIECES

    Tokenizer.from_vocabulary(PIECES, cased=False).save(folder)


def _make_byte_level(folder: Path, *, with_json: bool) -> None:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from tests.data.tokenizer.tokenizer_folders import byte_level_files
    from tests.data.tokenizer.tokenizer_folders import write as write_files

    write_files(folder, **byte_level_files())
    if with_json:
        Tokenizer.load(folder).save(folder)


def _make_spiece(folder: Path, *, with_json: bool) -> None:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from tests.data.tokenizer.tokenizer_folders import albert_spiece

    (folder / "spiece.model").write_bytes(albert_spiece())
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    if with_json:
        Tokenizer.load(folder).save(folder)


def _read_tokenizer(folder: Path) -> None:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    rows = tokenizer(list(_TEXTS), return_offsets_mapping=True, max_length=16, padding="longest")
    tokenizer(list(_TEXTS), list(_TEXTS), max_length=32)
    tokenizer.decode(rows["input_ids"][0]), tokenizer.fingerprint, tokenizer.tokenize(_TEXTS[0])


# Text


def _make_text(folder: Path) -> None:
    import zstandard

    plain = "\n\n".join(DOCUMENTS) + "\n"
    rows = "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(DOCUMENTS))
    wiki = "".join(
        json.dumps({"id": "1", "url": "https://en.wikipedia.org", "title": f"T{n}", "text": text}) + "\n"
        for n, text in enumerate(DOCUMENTS)
    )
    write({"a.txt": plain, "b.jsonl": rows, "c.md": f"# Title\n\n{plain}\n* a\n* b\n", "d": wiki})(folder)
    (folder / "e.txt.gz").write_bytes(gzip.compress(plain.encode(), mtime=0))
    (folder / "f.jsonl.zst").write_bytes(zstandard.compress(rows.encode()))
    _parquet(folder / "g.parquet")


def _parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": list(DOCUMENTS) * 20, "n": list(range(60))})
    parquet.write_table(table, path, row_group_size=30, compression="zstd")


def _read_text(path: Path) -> None:
    from bert_jax.data.text.corpus import Corpus
    from bert_jax.data.text.ranges import divide
    from bert_jax.data.text.sources import find_sources
    from bert_jax.files import near_path

    (source,) = find_sources([path])
    ranges = divide(source, 50)
    for some in ((source,), tuple(ranges)):
        consume(Corpus(some, may_be_empty=True))
    consume(Corpus([source], unwrap=True, may_be_empty=True))
    near_path(path.with_name("x" + path.name))


def _read_stdin(path: Path) -> None:
    from bert_jax.cli.texts import lines_of
    from bert_jax.data.text.lines import what_is_text

    consume(lines_of(str(path)))
    with path.open("rb") as file:
        consume(what_is_text(file, "stdin"))


# Tasks

_CONLL = "-DOCSTART- O\n\nJohn B-PER\nlives O\nin O\nParis B-LOC\n\nHe O\nleft O\n"


def _glue_files() -> dict[str, str]:
    from bert_jax.data.tasks.published import GLUE

    files = {}
    for name, layout in GLUE.items():
        width = max(layout.label, *layout.text) + 1 + (layout.label < 0)
        cells = [f"c{n}" for n in range(width)]
        lines = ["\t".join(cells)] if layout.header else []
        for number in range(3):
            row = [f"A sentence of column {n}." for n in range(width)]
            row[layout.label] = layout.labels[number % len(layout.labels)] if layout.labels else f"{number}.5"
            lines.append("\t".join(row))
        files[f"{name}.tsv"] = "\n".join(lines) + "\n"
    return files


def _read_glue(path: Path) -> None:
    from bert_jax.data.tasks.published import read_glue

    consume(read_glue(path.stem, path))
    consume(read_glue(path.stem, path, labelled=False))


_SQUAD = {
    "version": "2.0",
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": DOCUMENTS[0],
                    "qas": [
                        {
                            "id": "1",
                            "question": "Where?",
                            "answers": [{"text": "near the river", "answer_start": 16}],
                            "is_impossible": False,
                        },
                        {"id": "2", "question": "Who?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def _answered(squad: dict[str, Any]) -> dict[str, Any]:
    """A data set without its last question, which has no answer."""
    copy = json.loads(json.dumps(squad))
    copy["data"][0]["paragraphs"][0]["qas"].pop()
    return copy


def _read_squad(folder: Path) -> None:
    from bert_jax.data.tasks.passages import encode_passages, read_squad
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from bert_jax.evaluation.score import score
    from tests.inference.tasks.task_folders import PIECES

    rows = list(read_squad(folder / "gold.json"))
    if rows:
        tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
        encode_passages(
            tokenizer, [row.question for row in rows], [row.context for row in rows], max_length=64, stride=9
        )
    score("squad2", folder / "gold.json", folder / "said.json", no_answer_scores=folder / "none.json")
    for kind in ("squad1", "korquad"):
        score(kind, folder / "answered.json", folder / "said.json")


_ARC = {
    "id": "q",
    "question": {"stem": "Why?", "choices": [{"text": "so", "label": "A"}, {"text": "no", "label": "B"}]},
}
_CHOICES = {
    "swag.csv": "sent1,sent2,ending0,ending1,ending2,ending3,label\nHe runs.,He,stops.,sits.,eats.,\"a, b\",2\n",
    "codah.tsv": "o\tI am\ta.\tb.\tc.\td.\t3\n",
    "arc.jsonl": "".join(json.dumps(_ARC | {"answerKey": key}) + "\n" for key in ("A", "B")),
    "hellaswag.jsonl": json.dumps({"ind": 4, "ctx": "He", "endings": ["a", "b", "c", "d"], "label": 1}) + "\n",
}  # fmt: skip


def _read_choices(path: Path) -> None:
    from bert_jax.data.tasks.multiple_choice import CHOICE_READERS

    consume(CHOICE_READERS[path.stem](path))
    consume(CHOICE_READERS[path.stem](path, wrong=lambda error: None))


_TABLES = {
    "a.csv": 'text,pair,label,id\n"A, b",c,x,1\n"d ""q""",e,y,2\n',
    "b.tsv": "text\tpair\tlabel\tid\nOne\tTwo\tx\t1\nThree\tFour\ty\t2\n",
    "c.jsonl": "".join(json.dumps({"text": "a", "pair": "b", "label": n, "id": n}) + "\n" for n in "xy"),
    "d.json": [{"text": "a", "pair": "b", "label": n, "id": n} for n in ("x", "y")],
    "e.csv.gz": gzip.compress(b"text,pair,label,id\na,b,x|y,1\nc,d,y,2\n", mtime=0),
    "n.jsonl": "".join(json.dumps({"text": "a", "pair": "b", "label": n, "id": n}) + "\n" for n in (1, 2.5)),
}  # fmt: skip


def _read_table(path: Path) -> None:
    from bert_jax.data.tasks.labelled_text import Columns, check_labels_differ, find_labels, label_ids, read_table

    kind = "number" if path.name == "n.jsonl" else "classes" if path.name == "e.csv.gz" else "class"
    rows = list(read_table(path, Columns("text", "pair", "label", "id", kind)))
    check_labels_differ(rows, str(path))
    if kind != "number":
        label_ids(rows, find_labels(rows), str(path))
    consume(read_table(path, Columns("text"), lambda error: None))


_TAGGED = {
    "conll.conll": _CONLL,
    "pos.conllu": "# newdoc\n1-2\tab{0}\n1\ta\t_\tADP{1}\n2\tb\t_\tX{1}\n".format("\t_" * 8, "\t_" * 6),
    "klue-ner.tsv": "## klue\t이것\n이\tB-PS\n것\tI-PS\n \tO\n\n나\tO\n",
    "naver-ner.tsv": "나는 서울 에\tO LOC-B -\n너는 간다\t- O\n",
}  # fmt: skip


def _read_tags(path: Path) -> None:
    from bert_jax.data.tasks.tags import TAG_READERS
    from bert_jax.evaluation.score import score

    consume(TAG_READERS[path.stem](path))
    if path.stem in ("conll", "pos"):
        score(path.stem, path, path)


_PREDICTIONS = {
    "sst2.jsonl": "".join(json.dumps({"text": "t", "gold": n, "label": n}) + "\n" for n in ("0", "1", "1")),
    "stsb.jsonl": "".join(json.dumps({"gold": n, "label": n + 0.5}) + "\n" for n in (1.0, 2.0, 4.5)),
    "conll.jsonl": json.dumps({"gold": ["O", "B-PER"], "label": ["O", "B-LOC"]}) + "\n",
    "arc.jsonl": "".join(json.dumps({"gold": n, "label": 1}) + "\n" for n in (0, 1)),
    "classify.jsonl": "".join(json.dumps({"gold": n, "label": ["a"]}) + "\n" for n in (["a"], ["a", "b"])),
}


def _read_predictions(path: Path) -> None:
    from bert_jax.evaluation.predictions import score_file

    score_file(path.stem, path)


def _make_scored(folder: Path) -> None:
    table = "id,prediction\n1,x\n2,y\n"
    write({"gold.csv": _TABLES["a.csv"], "said.csv": table})(folder)
    write({"diagnostic.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n1\tc\td\tentailment\n"})(folder)
    write({"said.tsv": "index\tprediction\n0\tneutral\n1\tneutral\n"})(folder)


def _read_scored(folder: Path) -> None:
    from bert_jax.data.tasks.labelled_text import Columns
    from bert_jax.evaluation.score import score

    score("classify", folder / "gold.csv", folder / "said.csv", columns=Columns("text", None, "label", "id"))
    score("ax", folder / "diagnostic.tsv", folder / "said.tsv")


def _make_blimp(folder: Path) -> None:
    row = {"sentence_good": "He is.", "sentence_bad": "He are.", "UID": "u", "linguistics_term": "t", "field": "syntax"}
    lines = (json.dumps(row) + "\n") * 3
    write({"plain/data/u.jsonl": lines})(folder)
    (folder / "packed").mkdir()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("data/u.jsonl")
        member.size = len(lines)
        archive.addfile(member, io.BytesIO(lines.encode()))
    (folder / "packed" / "b.tar").write_bytes(packed.getvalue())
    (folder / "packed.tar.gz").write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def _read_blimp(folder: Path) -> None:
    from bert_jax.evaluation.blimp import read_blimp

    each(read_blimp)(folder)


# Prepared data: arrays


def _make_shards(folder: Path) -> None:
    from bert_jax.data.pretraining.examples import build_index
    from bert_jax.data.pretraining.shards import open_shard, save_shard, write_array
    from tests.data.pretraining.packed import pack_documents

    rng = np.random.default_rng(0)
    documents = [[rng.integers(5, 50, 9).astype("<u2") for _ in range(6)] for _ in range(8)]
    save_shard(folder / "shard-00000", pack_documents(documents, np.dtype("<u2")))
    made = build_index(
        open_shard(folder / "shard-00000"), shard_number=0, objective="nsp", rows="doc-sentences", max_seq_length=32,
        short_seq_prob=0.1, dupe_factor=1, seed=0,
    )  # fmt: skip
    write_array(folder / "index.npy", made)
    write_array(folder / "counts.npy", np.arange(50))


def _read_shards(folder: Path) -> None:
    from bert_jax.data.pretraining.arrays import FileSlices, load_array
    from bert_jax.data.pretraining.shards import describe_shard, open_shard

    open_shard(folder / "shard-00000")
    describe_shard(folder / "shard-00000")
    for path in sorted(folder.rglob("*.npy")):
        array = FileSlices(path)
        array[0:1], array[:]
        if len(array):
            array.mapped()[1][-1:]
        load_array(path)


# Runs

_RECORDED = Path(__file__).resolve().parents[1] / "train" / "diagnosis" / "recorded"


def _make_runs(folder: Path) -> None:
    for name in ("pairs", "warm-up"):
        (folder / name).mkdir()
        config = json.loads((_RECORDED / name / "config.json").read_text())
        (folder / name / "config.json").write_text(json.dumps(config | {"data": "nowhere"}))
        lines = (_RECORDED / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines[-20:]]
        kept = [json.dumps(row | {"tokens": row["step"] * 100, "seconds": row["step"] / 10}) for row in rows]
        (folder / name / "metrics.jsonl").write_text("\n".join(kept) + "\n")
        (folder / name / "environment.json").write_text('{"init": null, "devices": 1, "device_kind": "cpu"}')


def _read_runs(folder: Path) -> None:
    from bert_jax.formats.training_record import last_evaluation, training_record
    from train import compare
    from train.diagnosis.evidence import Evidence
    from train.diagnosis.metric_rules import find_in_metrics

    refused: Exception | None = None
    from bert_jax.errors import UserError

    def run(work: Callable[[], object]) -> None:
        nonlocal refused
        try:
            work()
        except (UserError, FileNotFoundError) as error:
            refused = error

    def compared() -> None:
        runs = [compare.read_run(str(path)) for path in sorted(folder.iterdir())]
        compare.differences(runs)
        for one in runs:
            json.dumps(one.facts())
        for by in ("step", "tokens", "seconds"):
            compare.figure_of(runs, by)

    for path in sorted(folder.iterdir()):
        run(lambda path=path: last_evaluation(path, None))
        run(lambda path=path: training_record(path, 10))
        run(lambda path=path: find_in_metrics(Evidence(str(path)), 4.0))
    run(compared)
    if refused:
        raise refused


# The doctor, on a run and its prepared data


def _make_examined(folder: Path) -> None:
    from train import prepare

    text = folder / "text.txt"
    words = ["river", "winter", "house", "bridge", "market", "garden", "letter", "window"]
    rng = random.Random(0)
    sentence = lambda: f"The {' '.join(rng.choices(words, k=9))}."  # noqa: E731
    text.write_text("\n\n".join("\n".join(sentence() for _ in range(6)) for _ in range(40)))
    options = ["--vocab-size", "200", "--max-seq-length", "64", "--dupe-factor", "1", "--held-out", "0.2"]
    assert prepare.main([str(text), "--output", str(folder / "data"), *options, "--workers", "1"]) == 0
    text.unlink()
    (folder / "run").mkdir()
    config = json.loads((_RECORDED / "pairs" / "config.json").read_text())
    (folder / "run" / "config.json").write_text(json.dumps(config | {"data": None}))
    shutil.copy(_RECORDED / "pairs" / "metrics.jsonl", folder / "run" / "metrics.jsonl")
    shutil.move(folder / "data", folder / "run" / "data")


def _mend_examined(folder: Path, rng: random.Random) -> None:
    """Half of the time writes the manifest's own sum again, as somebody who means harm would."""
    from bert_jax.data.pretraining.manifest import write_manifest

    if rng.random() < 0.5:
        with contextlib.suppress(Exception):
            manifest = json.loads((folder / "run" / "data" / "manifest.json").read_bytes())
            write_manifest(folder / "run" / "data", manifest)


def _read_examined(folder: Path) -> None:
    from dataclasses import asdict

    from train.diagnosis.evidence import Evidence
    from train.doctor import examine

    found, notes = examine(Evidence(str(folder / "run")))
    json.dumps([asdict(finding) for finding in found]), "".join(notes)


# Training configs and the words of a command line

_PRETRAIN = """from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("tiny", dtype="bfloat16"),
        optimizer=OptimizerConfig(learning_rate=5e-4, warmup_steps=1_000),
        phases=(Phase(length=128, batch=64, steps=20_000), (512, 16, 100)),
        text_options=TextConfig(vocab_size=16_000),
        seed=3,
    )
"""
_FINETUNE = """from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(optimizer=OptimizerConfig(learning_rate=3e-5), batch=32, epochs=3, warmup=0.1)
"""


def _read_python(path: Path) -> None:
    from train.finetuning.recipe import FinetuneConfig
    from train.pretraining.recipe import PretrainConfig
    from train.run.config import load_recipe, to_json

    json.dumps(to_json(load_recipe(str(path), FinetuneConfig if "finetune" in path.name else PretrainConfig)))


_WORDS = (
    "seed=3", "optimizer.learning_rate=1e-3", "phases=((64,8,90000),(128,8,10000))", "model.hidden_size=768",
    "masking.strategy=count", "save_every=10", "model.dtype=bfloat16", "text=a.txt", "data=x", "eval_every=5",
    "model.num_hidden_layers=2", "optimizer.name=adamw", "epochs=3", "task=sst2",
)  # fmt: skip


def _read_words(path: Path) -> None:
    from bert_jax.errors import UserError
    from train.finetuning.recipe import FinetuneConfig
    from train.pretraining.recipe import PretrainConfig
    from train.run.config import differing_fields, override, to_json

    refused: UserError | None = None
    for word in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        key, _, value = word.partition("=")
        for kind in (FinetuneConfig if key in ("task", "train", "epochs") else PretrainConfig,):
            try:
                config = override(kind(), {key: value})
            except UserError as error:
                refused = error
                continue
            json.dumps(to_json(config)), str(config), differing_fields(to_json(config), to_json(kind()))
    if refused:
        raise refused


def _read_each_word(folder: Path) -> None:
    _read_words(folder / "words.txt")


# Small files


def _make_small(folder: Path) -> None:
    from bert_jax.formats.sentence_transformers import write_modules

    write_modules(folder, "mean", 8, 128)
    write({"words.txt": "alpha\nbeta\n", "vectors.npy.part": b"\0" * 400})(folder)
    write({"vectors.npy.part.json": {"width": 8, "chunk": 2, "model": "m"}})(folder)


def _read_small(folder: Path) -> None:
    from bert_jax.cli.vector_file import VectorFile
    from bert_jax.cli.verbs.edit import _words_of
    from bert_jax.formats.sentence_transformers import vectors_of

    vectors_of(folder), _words_of(str(folder / "words.txt"))
    with VectorFile(folder / "vectors.npy", width=8, chunk=2, made_of={"model": "m"}) as file:
        file.append([np.zeros(8, np.float32)] * 2)


# The parts of a file of vectors, one of each process


def _make_parts(folder: Path) -> None:
    from bert_jax.cli.shards import PartFile, Share
    from bert_jax.cli.vector_file import VectorFile

    for ending in ("npy", "jsonl"):
        for number in (1, 2):
            part = PartFile(
                str(folder / f"v.{ending}"), Share(number, 2), total=4, made_of={"width": 8}, overwrite=False
            )
            with VectorFile(part.path, width=8, chunk=2, made_of={}) as file:
                file.append([np.ones(8, np.float32)] * 2)
                part.complete(file.size)
                file.finish()


def _read_parts(folder: Path) -> None:
    from bert_jax.cli.shards import PartFile, Share
    from bert_jax.cli.vector_file import join_parts
    from bert_jax.errors import UserError

    refused: Exception | None = None
    for ending in ("npy", "jsonl"):
        try:
            output = str(folder / f"v.{ending}")
            join_parts(PartFile(output, Share(1, 2), total=4, made_of={"width": 8}, overwrite=False), 8)
        except (UserError, FileNotFoundError) as error:
            refused = error
    if refused:
        raise refused


# The hub's cache

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _make_cache(folder: Path) -> None:
    root = folder / "models--org--name"
    snapshot = root / "snapshots" / _COMMIT
    snapshot.mkdir(parents=True)
    _make_safetensors(snapshot)
    write({"models--org--name/refs/main": _COMMIT})(folder)


def _read_cache(folder: Path) -> None:
    from bert_jax.formats.hub import fetch

    _read_model(fetch("org/name", offline=True, cache_dir=folder))


# Compiled folders


def _make_compiled(folder: Path) -> None:
    from bert_jax.inference.compiled.export import export_compiled
    from tests.inference.tasks.task_folders import export

    source = export(folder / "made", "pretraining")
    export_compiled(source, folder / "new", "embed", lengths=(8,), batch_sizes=(2,), platforms=("cpu",))
    shutil.rmtree(folder / "made")
    _moved_up(folder / "new")


def _read_compiled(folder: Path) -> None:
    from bert_jax.inference.compiled.facts import read_facts
    from bert_jax.inference.compiled.run import check_runs_here, read_programs, read_weights

    facts = read_facts(folder)
    check_runs_here(folder, facts)
    read_weights(folder, read_programs(folder, facts).values())


def _mend_compiled(folder: Path, rng: random.Random) -> None:
    """Half of the time writes the sums of the files as they are now, as somebody who means harm would."""
    from bert_jax.inference.compiled.facts import FACTS, _sum_of, sums_of

    if rng.random() < 0.5:
        return
    with contextlib.suppress(Exception):
        fields = json.loads((folder / FACTS).read_bytes())
        fields.pop("sha256", None)
        if isinstance(fields.get("files"), dict):
            found = sums_of(folder)
            fields["files"] = {name: found.get(name, old) for name, old in fields["files"].items()}
        (folder / FACTS).write_text(json.dumps(fields | {"sha256": _sum_of(fields)}))


KINDS: dict[str, Kind] = {
    "config.json of every family": Kind(_make_configs, each(_read_config), 4),
    "model: config and safetensors": Kind(_make_safetensors, _read_model, 2, _is_model_file),
    "model: safetensors in shards, with an index": Kind(_make_sharded, _read_model, 1.5, _is_model_file),
    "model: pytorch_model.bin": Kind(lambda f: _make_bin(f, legacy=False), _read_model, 1.5, _is_model_file),
    "model: pytorch_model.bin before torch 1.6": Kind(
        lambda f: _make_bin(f, legacy=True), _read_model, 1.5, _is_model_file
    ),
    "model: TensorFlow 1 checkpoint": Kind(_make_tf1, _read_model, 1.5, _is_model_file, _mend_tf1, True),
    "model: flax_model.msgpack": Kind(_make_flax, _read_model, 1.5, _is_model_file),
    "hub cache": Kind(_make_cache, _read_cache, 1, lambda path: "refs" in path or path.endswith("config.json")),
    "compiled folder": Kind(_make_compiled, _read_compiled, 0.5, mend=_mend_compiled, writes=True),
    "tokenizer: vocab.txt and its settings": Kind(
        _make_bert_tokenizer, _read_tokenizer, 2, lambda path: path != "of.json"
    ),
    "tokenizer: tokenizer.json, WordPiece": Kind(_make_json_tokenizer, _read_tokenizer, 2),
    "tokenizer: vocab.json and merges.txt": Kind(lambda f: _make_byte_level(f, with_json=False), _read_tokenizer, 1.5),
    "tokenizer: tokenizer.json, byte-level": Kind(lambda f: _make_byte_level(f, with_json=True), _read_tokenizer, 1.5),
    "tokenizer: spiece.model": Kind(lambda f: _make_spiece(f, with_json=False), _read_tokenizer, 1.5),
    "tokenizer: tokenizer.json, Unigram": Kind(lambda f: _make_spiece(f, with_json=True), _read_tokenizer, 1.5),
    "text: plain, JSON lines, Markdown, gzip, zstd, Parquet": Kind(_make_text, each(_read_text), 4),
    "text: stdin and files of texts": Kind(write({"a.txt": "\n".join(DOCUMENTS)}), each(_read_stdin), 1),
    "task: GLUE": Kind(lambda f: write(_glue_files())(f), each(_read_glue), 2),
    "task: tables (CSV, TSV, JSON)": Kind(write(_TABLES), each(_read_table), 2),
    "task: SQuAD": Kind(
        write({"gold.json": _SQUAD, "answered.json": _answered(_SQUAD), "said.json": {"1": "the river", "2": ""}, "none.json": {"1": 0.1, "2": 0.9}}),
        _read_squad, 2,
    ),
    "task: tags (CoNLL, CoNLL-U, KLUE, NAVER)": Kind(write(_TAGGED), each(_read_tags), 1.5),
    "task: multiple choice": Kind(write(_CHOICES), each(_read_choices), 1.5),
    "task: BLiMP": Kind(_make_blimp, _read_blimp, 1.5),
    "scores: predictions of a run": Kind(write(_PREDICTIONS), each(_read_predictions), 1.5),
    "scores: gold and predicted tables": Kind(_make_scored, _read_scored, 1),
    "prepared data: arrays": Kind(_make_shards, _read_shards, 2),
    "run: config, metrics, environment": Kind(_make_runs, _read_runs, 1.5),
    "run and prepared data: train.doctor": Kind(
        _make_examined, _read_examined, 1.5, lambda path: "tokenizer" not in path, _mend_examined, True
    ),
    "training config: a Python file": Kind(
        write({"pretrain.py": _PRETRAIN, "finetune.py": _FINETUNE}), each(_read_python, "*.py"), 1.5
    ),
    "training config: FIELD=VALUE": Kind(write({"words.txt": "\n".join(_WORDS)}), _read_each_word, 1.5),
    "small files: vectors of two processes": Kind(_make_parts, _read_parts, 0.5, writes=True),
    "small files: pooling, words, vectors": Kind(_make_small, _read_small, 1, writes=True),
}  # fmt: skip
