"""Prints prepared data: the report on the text, and examples as the model sees them."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bert_jax.data.pretraining.arrays import Opened, load_array
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.examples import ROWS
from bert_jax.data.pretraining.manifest import array_file, read_manifest, shard_folder
from bert_jax.data.pretraining.shards import Shard, open_shard
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError


def print_report(manifest: dict[str, Any], *, title: str) -> None:
    """Prints the report of a manifest on stderr."""
    console = Console(stderr=True, highlight=False)
    report = manifest["report"]
    splits = [name for name in manifest["splits"] if report[name]["documents"]]
    console.print(title, markup=False, soft_wrap=True)
    table = Table()
    for column in ("", *splits):
        table.add_column(column, justify="right" if column else "left")
    for label, key, form in _TEXT_ROWS:
        table.add_row(label, *(form.format(report[split][key]) for split in splits))
    for length in manifest["settings"]["max_seq_lengths"]:
        table.add_section()
        for label, key, form in _EXAMPLE_ROWS:
            if key == "label_1_share" and manifest["objective"] == "none":
                continue
            figures = [report[split]["examples"][str(length)] for split in splits]
            name = label.format(length=length, ones=_ONES.get(manifest["objective"]))
            table.add_row(name, *(form.format(figure[key]) for figure in figures))
    console.print(table)
    tokenizer = manifest["tokenizer"]
    console.print(
        f"vocabulary{_origin(tokenizer)}: {tokenizer['vocab_size']:,} pieces, "
        f"{'cased' if tokenizer['cased'] else 'uncased'}, accents "
        f"{'stripped' if tokenizer['strip_accents'] else 'kept'}{_why_accents(report)}; objective "
        f"{manifest['objective']}{_rows(manifest)}, recipe {manifest['recipe']}, seed {manifest['seed']}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    if "held_out_note" in report:
        console.print(report["held_out_note"], markup=False, soft_wrap=True)
    if removed := report.get("removed"):
        what = f"{removed['documents']:,} documents and {removed['lines']:,} lines of others that repeat earlier ones"
        console.print(f"removed: {what}, {removed['text_share']:.2%} of the text", soft_wrap=True)
    if left_out := report.get("not_plain"):
        what = f"{left_out['sentences']:,} sentences that are not plain"
        console.print(f"left out: {what}, {left_out['text_share']:.1%} of the text", soft_wrap=True)
    for warning in report["warnings"]:
        print_warning(warning)


def print_warning(warning: str) -> None:
    """Prints a warning on stderr."""
    Console(stderr=True, highlight=False).print("warning:", warning, style="yellow", markup=False, soft_wrap=True)


def print_failure(message: str) -> None:
    """Prints what is wrong with a file, one of several, on stderr."""
    Console(stderr=True, highlight=False).print("failed:", message, style="red", markup=False, soft_wrap=True)


def _origin(tokenizer: dict[str, Any]) -> str:
    return f" of {tokenizer['published']}" if tokenizer.get("published") else ""


def _rows(manifest: dict[str, Any]) -> str:
    if manifest["objective"] != "none":
        return ""
    settings = manifest["settings"]
    twice = f", {settings['twice']:.0%} of them twice" if "twice" in settings else ""
    return f" ({settings.get('rows', ROWS[0])}{twice})"


def _why_accents(report: dict[str, Any]) -> str:
    learnt = report["vocabulary"]
    return f" ({learnt['strip_accents_because']})" if learnt and "strip_accents_because" in learnt else ""


_ONES = {"nsp": "with a random second sentence", "sop": "swapped or random"}
_TEXT_ROWS = (
    ("documents", "documents", "{:,}"),
    ("sentences", "sentences", "{:,}"),
    ("sentences per document, median", "sentences_per_document_median", "{:,.1f}"),
    ("tokens", "tokens", "{:,}"),
    ("[UNK]", "unk_rate", "{:.3%}"),
    ("duplicate lines", "duplicate_lines", "{:.1%}"),
    ("unigram entropy, nats (loss without context)", "unigram_entropy", "{:.3f}"),
)
_EXAMPLE_ROWS = (
    ("examples of length {length}", "examples", "{:,}"),
    ("  padding", "padding_share", "{:.1%}"),
    ("  cut inside a sentence", "truncated_share", "{:.1%}"),
    ("  {ones}", "label_1_share", "{:.1%}"),
)


_ROWS_AT_ONCE = 256


def show(directory: Path, *, split: str, max_seq_length: int | None, limit: int | None, as_json: bool) -> None:
    """Prints examples on stdout, in the order of the index; masks are those of epoch 0 under the data's seed.

    max_seq_length: None takes the first length that the data was prepared for. limit: None prints all. as_json: prints
    one line per example with tokens, token_type_ids, mlm_positions, mlm_labels and next_sentence_label (null for
    objective none).
    """
    if limit is not None and limit < 0:
        raise UserError(f"--limit: found {limit}, expected 0 or more")
    manifest = read_manifest(directory)
    length = max_seq_length or manifest["settings"]["max_seq_lengths"][0]
    instances = read_instances(directory, manifest, split=split, max_seq_length=length)
    if as_json:
        for instance in islice(instances, limit):
            print(json.dumps(instance, ensure_ascii=False))
        return
    places = _places(directory, manifest, split, length)
    mask_token = Tokenizer.load(directory / "tokenizer").mask_token
    for number, (instance, place) in enumerate(zip(islice(instances, limit), places, strict=False)):
        print(f"{split} {length} #{number}: {_pair(place, instance, manifest['objective'])}")
        print(f"  {' '.join(_marked(instance, mask_token))}")
        print(f"  masked: {_masked(instance)}\n")


def read_instances(
    directory: Path, manifest: dict[str, Any], *, split: str, max_seq_length: int
) -> Iterator[dict[str, Any]]:
    """Yields tokens after masking, token_type_ids, mlm_positions, mlm_labels (tokens), next_sentence_label."""
    tokenizer = Tokenizer.load(directory / "tokenizer")
    batches = Batches(
        directory, split=split, batch_size=_ROWS_AT_ONCE, max_seq_length=max_seq_length, seed=manifest["seed"],
        shuffle=False,
    )  # fmt: skip
    for step in range(batches.steps_per_epoch):
        rows = range(min(_ROWS_AT_ONCE, len(batches) - step * _ROWS_AT_ONCE))
        batch = batches.batch(step, np.array(rows))
        labels = batch.get("next_sentence_label")
        for row in rows:
            length = int(batch["attention_mask"][row].sum())
            masked = batch["mlm_weights"][row] > 0
            yield {
                "tokens": tokenizer.ids_to_tokens(batch["input_ids"][row, :length]),
                "token_type_ids": batch["token_type_ids"][row, :length].tolist(),
                "mlm_positions": batch["mlm_positions"][row][masked].tolist(),
                "mlm_labels": tokenizer.ids_to_tokens(batch["mlm_labels"][row][masked]),
                "next_sentence_label": None if labels is None else int(labels[row]),
            }


def _places(directory: Path, manifest: dict[str, Any], split: str, length: int) -> Iterator[tuple[Any, Any]]:
    """Yields where A and B of each example come from: (shard name, its first and last document) each.

    B is None where it is missing.
    """
    parts = manifest["splits"][split]

    def named_shard(number: int) -> tuple[str, Shard]:
        folder = directory / shard_folder(split, number)
        return folder.name, open_shard(folder)

    shards = Opened(parts["shards"]["count"], named_shard)
    for number in range(parts["examples"][str(length)]["count"]):
        for row in load_array(directory / array_file(f"{split}/examples-{length}", number, "rows")):
            has_b = row["b_end"] > row["b_start"]
            a, b = ((shards[row[f"{x}_shard"]], int(row[f"{x}_start"]), int(row[f"{x}_end"])) for x in "ab")
            yield _place(*a), _place(*b) if has_b else None


def _place(named_shard: tuple[str, Shard], start: int, end: int) -> tuple[str, int, int]:
    name, shard = named_shard
    sentences = np.searchsorted(shard.sentences, (start, end - 1), side="right") - 1
    first, last = (np.searchsorted(shard.documents, sentences, side="right") - 1).tolist()
    return name, first, last


def _pair(places: Any, instance: dict[str, Any], objective: str) -> str:
    a, b = (_documents(*place) if place else "" for place in places)
    if not b:
        return f"A from {a}"
    if objective == "none":
        return f"A from {a}, and again as B"
    follows = instance["next_sentence_label"] == 0
    if objective == "sop":
        relation = "in order" if follows else "swapped" if a == b else "random"
    else:
        relation = "B follows A" if follows else "B is random"
    return f"label {instance['next_sentence_label']} ({relation}); A from {a}, B from {b}"


def _documents(shard: str, first: int, last: int) -> str:
    return f"document {first} of {shard}" if first == last else f"documents {first} to {last} of {shard}"


def _marked(instance: dict[str, Any], mask_token: str) -> list[str]:
    """The tokens, with braces around those that masking replaced by random tokens."""
    tokens = list(instance["tokens"])
    for position, label in zip(instance["mlm_positions"], instance["mlm_labels"], strict=True):
        if tokens[position] not in (mask_token, label):
            tokens[position] = f"{{{tokens[position]}}}"
    return tokens


def _masked(instance: dict[str, Any]) -> str:
    parts = []
    for position, label in zip(instance["mlm_positions"], instance["mlm_labels"], strict=True):
        token = instance["tokens"][position]
        parts.append(f"{position} {label} " + ("kept" if token == label else f"-> {token}"))
    return ", ".join(parts)
