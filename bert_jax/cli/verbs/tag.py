"""The verb tag: finds the entities of texts, or tags each word."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from bert_jax.cli.arguments import FINE_TUNED, Verb, add_results, add_running, add_source, add_texts, running
from bert_jax.cli.streaming import CHUNK, answered_by, serve
from bert_jax.cli.texts import table_of, texts_of
from bert_jax.errors import UserError, errors_in_place, in_a_line

_ABOUT = """\
Find the entities of each text and their character positions, with a model fine-tuned to tag words. A run of task=pos
gives each word with its label. Nothing is truncated: a long text is read in windows, which for a fine-tuning run are
those of its evaluation.

examples:
  python -m bert_jax tag runs/ner "Marie Curie was born in Warsaw."
  python -m bert_jax tag runs/ner news.txt                            one text per line
  python -m bert_jax tag my-bert --json < news.txt                    one JSON list per text: entity_group, score ...
  python -m bert_jax tag my-bert test.conll --conll > predicted.conll one word and its tag per line
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, FINE_TUNED)
    add_texts(parser)
    columns = "FILE has CoNLL's columns, one word per line in the first, or is CoNLL-U, or .jsonl with tokens"
    parser.add_argument("--conll", action="store_true", help=columns)
    aggregation = "which of a word's sub-tokens decide its tag: default first"
    parser.add_argument("--aggregation", choices=("first", "max", "average"), default="first", help=aggregation)
    split = "the units that get a tag, as in training (default: the run's, or words, with punctuation split off)"
    parser.add_argument("--split", choices=("words", "spaces", "characters"), help=split)
    parser.add_argument(
        "--max-length", type=int, metavar="L", help="tokens of a row (default: the run's, or the model's)"
    )
    stride = "tokens from the beginning of a window to that of the next (default: the run's, or half a window)"
    parser.add_argument("--stride", type=int, metavar="N", help=stride)
    add_running(parser)
    add_results(parser, "one JSON list per text: entity_group, score, word, start, end")


def run(arguments: argparse.Namespace) -> None:
    """`tag DIR [TEXT|FILE ...]`: prints the entities of each text, or with --conll the tag of each word."""
    if arguments.conll and (len(arguments.texts) > 1 or arguments.texts == ["-"]):
        raise UserError("--conll: name the file; columns cannot be read from stdin")
    if arguments.conll and arguments.split is not None:
        raise UserError(f"--split {arguments.split}: leave it out with --conll, whose file has the words")
    lines = [] if arguments.conll else texts_of(arguments.texts)
    from bert_jax.data.tasks.tags import TaggedSentence, read_pos
    from bert_jax.inference.tasks.token_classification import TokenClassification

    predict = TokenClassification(
        arguments.source,
        split=arguments.split,
        aggregation_strategy=arguments.aggregation,
        max_length=arguments.max_length,
        step=arguments.stride,
        **running(arguments),
    )
    if not arguments.conll:
        serve(answered_by(predict, lines), _show_entities, as_json=arguments.json)
        return
    path = table_of(arguments.texts[0])
    sentences = errors_in_place(lambda wrong: read_pos(path, tagged=False, wrong=wrong))

    def of_words(some: list[TaggedSentence]) -> list[Any]:
        tags = predict.tags([one.words for one in some], [one.document for one in some])
        if not arguments.json:
            return tags
        return [predict.entities(one.words, own) for one, own in zip(some, tags, strict=True)]

    at_once = None if predict.document_context else CHUNK  # a chunk would cut a document
    serve(_tagged(sentences, of_words, at_once), _show_tags, as_json=arguments.json, items="sentences")


def _tagged(
    sentences: Iterable[Any], of_words: Callable[[list[Any]], list[Any]], at_once: int | None
) -> Iterator[tuple[Any, Any]]:
    iterator = iter(sentences)
    while some := list(islice(iterator, at_once)):
        found = iter(of_words([one for one in some if not isinstance(one, UserError)]))
        yield from ((one, one if isinstance(one, UserError) else next(found)) for one in some)


def _show_tags(sentence: Any, tags: list[Any]) -> str:
    return "".join(f"{word}\t{in_a_line(tag.label)}\n" for word, tag in zip(sentence.words, tags, strict=True))


def _show_entities(text: str, entities: list[dict[str, Any]]) -> str:
    lines = [
        f"  {row['score']:.4f}  {in_a_line(row['entity_group'])}  {row['word']}  {row['start']}-{row['end']}"
        for row in entities
    ]
    return "\n".join([text, *lines])


VERBS = {"tag": Verb(_ABOUT, add_arguments, run, keywords={"step": "--stride"})}
