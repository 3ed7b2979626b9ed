"""What the verbs of fine-tuned models do; `arguments.py` has their arguments."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError

_CHUNK = 256  # texts or questions that are answered together
_CERTAIN = 1e9  # how much better no answer is where there is no other: JSON has no infinity


def classify(arguments: argparse.Namespace) -> None:
    """`classify DIR [FILE]`: the best label of each text."""
    if arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    texts = _texts_to_classify(arguments)
    from bert_jax.inference.text_classification import TextClassification

    predict = TextClassification(arguments.source, batch_size=arguments.batch_size)
    for some in _chunks(texts):
        for found in predict(some, top_k=arguments.top_k):
            labels = [found] if arguments.top_k == 1 else found
            shown = "\t".join(f"{row['label']}\t{row['score']:.4f}" for row in labels)
            _write(_json(labels) if arguments.json else shown)


def tag(arguments: argparse.Namespace) -> None:
    """`tag DIR [FILE]`: the entities of each text, or the tag of each word of CoNLL's columns."""
    if arguments.conll and arguments.file == "-":
        raise UserError("--conll: name the file (columns are not read from stdin)")
    if arguments.conll and arguments.split != "words":
        raise UserError(f"--split {arguments.split}: with --conll the words are the file's")
    lines = [] if arguments.conll else _lines(arguments.file)
    from bert_jax.data.tasks.conll import read_conll
    from bert_jax.inference.token_classification import TokenClassification

    predict = TokenClassification(arguments.source, batch_size=arguments.batch_size, split=arguments.split)
    if arguments.conll:
        sentences = (sentence.words for sentence in read_conll(_file(arguments.file), tag=None))
        for some in _chunks(sentences):
            if arguments.json:
                for entities in predict.of_words(some):
                    _write(_json(entities))
                continue
            for words, tags in zip(some, predict.tags(some), strict=True):
                _write("".join(f"{word}\t{tag.label}\n" for word, tag in zip(words, tags, strict=True)))
        return
    for some in _chunks(lines):
        for text, entities in zip(some, predict(some), strict=True):
            _write(_json(entities) if arguments.json else _show_entities(text, entities))


def answer(arguments: argparse.Namespace) -> None:
    """`answer DIR FILE`: {id: answer} of a file in SQuAD's form, or an answer for each row of a table."""
    path = _file(arguments.file)
    for written in (arguments.output, arguments.null_odds):
        if written and not Path(written).absolute().parent.is_dir():
            raise FileNotFoundError(f"{written}: its folder does not exist")
    questions = list(_questions(path))
    from bert_jax.inference.question_answering import QuestionAnswering

    predict = QuestionAnswering(
        arguments.source,
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        stride=arguments.stride,
        max_answer_length=arguments.max_answer_length,
        null_threshold=arguments.null_threshold,
    )
    found, odds = [], {}
    for question, answers in zip(questions, predict.answers(questions), strict=True):
        found.append({"id": question["id"]} | predict.describe(answers))
        odds[question["id"]] = min(answers.no_answer_score, _CERTAIN)
    if arguments.json:
        text = "\n".join(map(_json, found))
    elif _is_squad(path):
        text = json.dumps({row["id"]: row["answer"] for row in found}, ensure_ascii=False, indent=1)
    else:
        text = "\n".join(f"{row['score']:.4f}\t{' '.join(row['answer'].split())}" for row in found)
    if arguments.null_odds:
        Path(arguments.null_odds).write_text(json.dumps(odds, indent=1) + "\n", encoding="utf-8")
    if arguments.output:
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    else:
        _write(text)


def choose(arguments: argparse.Namespace) -> None:
    """`choose DIR FILE`: the number of the best choice of each question."""
    from bert_jax.data.tasks.multiple_choice import CHOICE_READERS

    questions = CHOICE_READERS[arguments.format](_file(arguments.file))
    from bert_jax.inference.multiple_choice import MultipleChoice

    predict = MultipleChoice(arguments.source, batch_size=arguments.batch_size)
    for some in _chunks(questions):
        for question, found in zip(some, predict(some), strict=True):
            row = {"id": question.id} | found
            _write(_json(row) if arguments.json else f"{found['choice']}\t{found['score']:.4f}")


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "classify": classify,
    "tag": tag,
    "answer": answer,
    "choose": choose,
}


def _texts_to_classify(arguments: argparse.Namespace) -> Iterator[Any]:
    from bert_jax.data.tasks.labelled_text import Columns, read_table

    if arguments.text:
        rows = read_table(_file(arguments.file), Columns(arguments.text, arguments.pair, label=None))
        return (row.text if row.pair is None else {"text": row.text, "text_pair": row.pair} for row in rows)
    if arguments.pair:
        raise UserError(f"--pair {arguments.pair}: name the column of the first texts too, --text COL")
    if Path(arguments.file.removesuffix(".gz").removesuffix(".zst")).suffix in (".csv", ".tsv", ".jsonl", ".json"):
        raise UserError(f"{arguments.file}: a table; name the column with the texts, --text COL")
    return _lines(arguments.file)


def _questions(path: Path) -> Iterator[dict[str, str]]:
    """id, question, context."""
    from bert_jax.data.tasks.squad import read_squad
    from bert_jax.data.tasks.tables import named_rows

    if _is_squad(path):
        yield from ({"id": one.id, "question": one.question, "context": one.context} for one in read_squad(path))
        return
    for number, (line, row) in enumerate(named_rows(path)):
        for name in ("question", "context"):
            if not isinstance(row.get(name), str):
                raise UserError(f"{path}, line {line}: has no text {name!r}; it has {', '.join(map(repr, row))}")
        yield {"id": str(row.get("id", number)), "question": row["question"], "context": row["context"]}


def _is_squad(path: Path) -> bool:
    from bert_jax.data.tasks.tables import format_of

    return format_of(path) == "json"


def _file(name: str) -> Path:
    if name == "-":
        raise UserError("a table is not read from stdin: name the file")
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: no such file")
    return path


def _lines(name: str) -> Iterator[str]:
    if name == "-":
        if sys.stdin.isatty():
            raise UserError("name a file with one text a line, or pipe one in")
        return _stdin()
    from bert_jax.data.text_files import read_lines

    return (line.removesuffix("\r") for _, line in read_lines(_file(name)))


def _stdin() -> Iterator[str]:
    try:
        for line in sys.stdin:
            yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(f"stdin: not UTF-8 ({error.reason} at byte {error.start})") from None


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _show_entities(text: str, entities: list[dict[str, Any]]) -> str:
    lines = [
        f"  {row['score']:.4f}  {row['entity_group']}  {row['word']}  {row['start']}-{row['end']}" for row in entities
    ]
    return "\n".join([text, *lines])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
