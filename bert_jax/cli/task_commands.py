"""What the verbs of fine-tuned models do; `arguments.py` has their arguments."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bert_jax.cli import attend as attend_command
from bert_jax.cli import compiled as compiled_command
from bert_jax.cli import embed as embed_command
from bert_jax.cli import likelihood as likelihood_command
from bert_jax.cli import next_sentence as next_sentence_command
from bert_jax.cli import summarise as summarise_command
from bert_jax.cli.arguments import running
from bert_jax.cli.streaming import CHUNK, answered_by, lines_of, say, serve, to_json, write
from bert_jax.errors import UserError, errors_in_place
from bert_jax.inference.tasks.checks import writable

_CERTAIN = 1e9  # how much better no answer is where there is no other: JSON has no infinity
_N_BEST = 20  # answers that share the probability, as in run_squad.py


def classify(arguments: argparse.Namespace) -> None:
    """`classify DIR [FILE]`: the best label of each text."""
    if arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    texts = _texts_to_classify(arguments)
    from bert_jax.inference.tasks.text_classification import TextClassification

    predict = TextClassification(arguments.source, **running(arguments))

    def show(_: Any, found: Any) -> str:
        return "\t".join(f"{row['label']}\t{row['score']:.4f}" for row in found)

    serve(
        answered_by(predict, texts, top_k=arguments.top_k),
        show,
        as_json=arguments.json,
    )


def tag(arguments: argparse.Namespace) -> None:
    """`tag DIR [FILE]`: the entities of each text, or the tag of each word of CoNLL's columns."""
    if arguments.conll and arguments.file == "-":
        raise UserError("--conll: name the file (columns are not read from stdin)")
    if arguments.conll and arguments.split != "words":
        raise UserError(f"--split {arguments.split}: with --conll the words are the file's")
    lines = [] if arguments.conll else lines_of(arguments.file)
    from bert_jax.data.tasks.tags import read_conll
    from bert_jax.inference.tasks.token_classification import TokenClassification

    predict = TokenClassification(
        arguments.source,
        split=arguments.split,
        aggregation_strategy=arguments.aggregation,
        **running(arguments),
    )
    if not arguments.conll:
        serve(answered_by(predict, lines), _show_entities, as_json=arguments.json)
        return
    path = _file(arguments.file)
    sentences = errors_in_place(lambda wrong: read_conll(path, tag=None, wrong=wrong))

    def of_words(words: list[tuple[str, ...]]) -> list[Any]:
        return predict(words, is_split_into_words=True) if arguments.json else predict.tags(words)

    serve(_tagged(sentences, of_words), _show_tags, as_json=arguments.json)


def answer(arguments: argparse.Namespace) -> None:
    """`answer DIR FILE`: {id: answer} of a file in SQuAD's form, or an answer for each row of a table."""
    path = _file(arguments.file)
    if not 1 <= arguments.top_k <= _N_BEST:
        raise UserError(f"--top-k {arguments.top_k}: expected 1 to {_N_BEST}")
    if arguments.top_k > 1 and _is_squad(path) and not arguments.json:
        raise UserError(f"--top-k {arguments.top_k}: {{id: answer}} has one answer a question; add --json")
    for written in (arguments.output, arguments.null_odds):
        if written:
            writable(written)
    questions = list(_questions(path))
    from bert_jax.inference.tasks.question_answering import QuestionAnswering

    predict = QuestionAnswering(
        arguments.source,
        max_seq_len=arguments.max_length,
        stride=arguments.stride,
        max_answer_len=arguments.max_answer_length,
        n_best=_N_BEST,
        null_threshold=arguments.null_threshold,
        **running(arguments),
    )
    found, odds, wrong = [], {}, 0
    answers_of = zip(questions, predict.answers(questions, on_error="return"), strict=True)
    for number, (question, answers) in enumerate(answers_of):
        name = str(number) if isinstance(question, UserError) else question["id"]
        if isinstance(answers, UserError):
            wrong += 1
            if not arguments.json:
                say(f"error: {answers}")
            found.append([{"id": name, "answer": "", "score": 0.0, "error": str(answers)}])
            continue
        best = predict.describe(answers, arguments.top_k)
        found.append([{"id": name} | one for one in (best if arguments.top_k > 1 else [best])])
        odds[name] = min(answers.no_answer_score, _CERTAIN)
    if arguments.json:
        text = "\n".join(to_json(rows if arguments.top_k > 1 else rows[0]) for rows in found)
    elif _is_squad(path):
        text = json.dumps({rows[0]["id"]: rows[0]["answer"] for rows in found}, ensure_ascii=False, indent=1)
    else:
        text = "\n".join(map(_show_answers, found))
    if arguments.null_odds:
        Path(arguments.null_odds).write_text(json.dumps(odds, indent=1) + "\n", encoding="utf-8")
    if arguments.output:
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    else:
        write(text)
    if wrong:
        raise UserError(f"{wrong} of {len(found)} questions could not be answered; the others were")


def choose(arguments: argparse.Namespace) -> None:
    """`choose DIR FILE`: the number of the best choice of each question."""
    from bert_jax.data.tasks.multiple_choice import CHOICE_READERS

    path = _file(arguments.file)
    questions = errors_in_place(lambda wrong: CHOICE_READERS[arguments.format](path, wrong))
    from bert_jax.inference.tasks.multiple_choice import MultipleChoice

    predict = MultipleChoice(arguments.source, **running(arguments))
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
        path, columns = _file(arguments.file), Columns(arguments.text, arguments.pair, label=None)
        rows = errors_in_place(lambda wrong: read_table(path, columns, wrong))
        return map(_to_classify, rows)
    if arguments.pair:
        raise UserError(f"--pair {arguments.pair}: name the column of the first texts too, --text COL")
    if Path(arguments.file.removesuffix(".gz").removesuffix(".zst")).suffix in (".csv", ".tsv", ".jsonl", ".json"):
        raise UserError(f"{arguments.file}: a table; name the column with the texts, --text COL")
    return lines_of(arguments.file)


def _to_classify(row: Any) -> Any:
    if isinstance(row, UserError):
        return row
    return row.text if row.pair is None else {"text": row.text, "text_pair": row.pair}


def _questions(path: Path) -> Iterator[dict[str, str] | UserError]:
    """id, question, context; in the place of a row that has not both the error."""
    from bert_jax.data.tasks.passages import read_squad
    from bert_jax.data.tasks.tables import has_header, named_rows

    if _is_squad(path):
        yield from ({"id": one.id, "question": one.question, "context": one.context} for one in read_squad(path))
        return
    for number, found in enumerate(errors_in_place(lambda wrong: named_rows(path, wrong))):
        if isinstance(found, UserError):
            yield found
            continue
        line, row = found
        if missing := [name for name in ("question", "context") if not isinstance(row.get(name), str)]:
            has = ", ".join(map(repr, row))
            error = UserError(f"{path}, line {line}: has no text {missing[0]!r}; it has {has}")
            if has_header(path):
                raise error
            yield error
            continue
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


def _tagged(
    sentences: Iterable[Any], of_words: Callable[[list[tuple[str, ...]]], list[Any]]
) -> Iterator[tuple[Any, Any]]:
    iterator = iter(sentences)
    while some := list(islice(iterator, CHUNK)):
        found = iter(of_words([one.words for one in some if not isinstance(one, UserError)]))
        yield from ((one, one if isinstance(one, UserError) else next(found)) for one in some)


def _show_tags(sentence: Any, tags: list[Any]) -> str:
    return "".join(f"{word}\t{tag.label}\n" for word, tag in zip(sentence.words, tags, strict=True))


def _show_answers(rows: list[dict[str, Any]]) -> str:
    return "\t".join(f"{row['score']:.4f}\t{' '.join(row['answer'].split())}" for row in rows)


def _show_entities(text: str, entities: list[dict[str, Any]]) -> str:
    lines = [
        f"  {row['score']:.4f}  {row['entity_group']}  {row['word']}  {row['start']}-{row['end']}" for row in entities
    ]
    return "\n".join([text, *lines])
