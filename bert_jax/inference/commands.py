"""What the verbs of fine-tuned models do; `arguments.py` has their arguments."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.inference import (
    attend_command,
    compiled_command,
    embed_command,
    likelihood_command,
    next_sentence_command,
    summarise_command,
)
from bert_jax.inference.checks import writable
from bert_jax.inference.serve import CHUNK, answered_by, lines_of, serve, to_json, write

_CERTAIN = 1e9  # how much better no answer is where there is no other: JSON has no infinity


def classify(arguments: argparse.Namespace) -> None:
    """`classify DIR [FILE]`: the best label of each text."""
    if arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    texts = _texts_to_classify(arguments)
    from bert_jax.inference.text_classification import TextClassification

    predict = TextClassification(arguments.source, batch_size=arguments.batch_size, cache=True)

    def show(_: Any, found: Any) -> str:
        labels = [found] if arguments.top_k == 1 else found
        return "\t".join(f"{row['label']}\t{row['score']:.4f}" for row in labels)

    serve(
        answered_by(predict, texts, top_k=arguments.top_k),
        show,
        as_json=arguments.json,
        in_json=lambda _, found: [found] if arguments.top_k == 1 else found,
    )


def tag(arguments: argparse.Namespace) -> None:
    """`tag DIR [FILE]`: the entities of each text, or the tag of each word of CoNLL's columns."""
    if arguments.conll and arguments.file == "-":
        raise UserError("--conll: name the file (columns are not read from stdin)")
    if arguments.conll and arguments.split != "words":
        raise UserError(f"--split {arguments.split}: with --conll the words are the file's")
    lines = [] if arguments.conll else lines_of(arguments.file)
    from bert_jax.data.tasks.conll import read_conll
    from bert_jax.inference.token_classification import TokenClassification

    predict = TokenClassification(
        arguments.source,
        batch_size=arguments.batch_size,
        split=arguments.split,
        aggregation_strategy=arguments.aggregation,
        cache=True,
    )
    if not arguments.conll:
        serve(answered_by(predict, lines), _show_entities, as_json=arguments.json)
        return
    sentences = (sentence.words for sentence in read_conll(_file(arguments.file), tag=None))
    for some in _chunks(sentences):
        if arguments.json:
            for entities in predict(some, is_split_into_words=True):
                write(to_json(entities))
            continue
        for words, tags in zip(some, predict.tags(some), strict=True):
            write("".join(f"{word}\t{tag.label}\n" for word, tag in zip(words, tags, strict=True)))


def answer(arguments: argparse.Namespace) -> None:
    """`answer DIR FILE`: {id: answer} of a file in SQuAD's form, or an answer for each row of a table."""
    path = _file(arguments.file)
    for written in (arguments.output, arguments.null_odds):
        if written:
            writable(written)
    questions = list(_questions(path))
    from bert_jax.inference.question_answering import QuestionAnswering

    predict = QuestionAnswering(
        arguments.source,
        batch_size=arguments.batch_size,
        cache=True,
        max_length=arguments.max_length,
        stride=arguments.stride,
        max_answer_length=arguments.max_answer_length,
        null_threshold=arguments.null_threshold,
    )
    found, odds, wrong = [], {}, []
    for question, answers in zip(questions, predict.answers(questions, on_error="return"), strict=True):
        if isinstance(answers, UserError):
            wrong.append(answers)
            found.append({"id": question["id"], "answer": "", "score": 0.0, "error": str(answers)})
            continue
        found.append({"id": question["id"]} | predict.describe(answers))
        odds[question["id"]] = min(answers.no_answer_score, _CERTAIN)
    if arguments.json:
        text = "\n".join(map(to_json, found))
    elif _is_squad(path):
        text = json.dumps({row["id"]: row["answer"] for row in found}, ensure_ascii=False, indent=1)
    else:
        text = "\n".join(f"{row['score']:.4f}\t{' '.join(row['answer'].split())}" for row in found)
    if arguments.null_odds:
        Path(arguments.null_odds).write_text(json.dumps(odds, indent=1) + "\n", encoding="utf-8")
    if arguments.output:
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    else:
        write(text)
    if wrong:
        raise UserError(f"{len(wrong)} of {len(found)} questions have no answer; the first: {wrong[0]}")


def choose(arguments: argparse.Namespace) -> None:
    """`choose DIR FILE`: the number of the best choice of each question."""
    from bert_jax.data.tasks.multiple_choice import CHOICE_READERS

    questions = CHOICE_READERS[arguments.format](_file(arguments.file))
    from bert_jax.inference.multiple_choice import MultipleChoice

    predict = MultipleChoice(arguments.source, batch_size=arguments.batch_size, cache=True)
    serve(
        answered_by(predict, questions),
        lambda _, found: f"{found['choice']}\t{found['score']:.4f}",
        as_json=arguments.json,
        in_json=lambda question, found: {"id": question.id} | found,
    )


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "classify": classify,
    "tag": tag,
    "answer": answer,
    "choose": choose,
    "attend": attend_command.attend,
    "embed": embed_command.embed,
    "export-compiled": compiled_command.export_compiled,
    "run-compiled": compiled_command.run_compiled,
    "evaluate-blimp": likelihood_command.evaluate_blimp,
    "likelihood": likelihood_command.likelihood,
    "next-sentence": next_sentence_command.next_sentence,
    "similar": embed_command.similar,
    "summarise": summarise_command.summarise,
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
    return lines_of(arguments.file)


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


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _show_entities(text: str, entities: list[dict[str, Any]]) -> str:
    lines = [
        f"  {row['score']:.4f}  {row['entity_group']}  {row['word']}  {row['start']}-{row['end']}" for row in entities
    ]
    return "\n".join([text, *lines])
