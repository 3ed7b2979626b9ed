"""What each verb of the command line does; `bert_jax/__main__.py` has their arguments."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.cli import task_commands as of_tasks
from bert_jax.cli.arguments import running
from bert_jax.cli.streaming import answered_by, lines_of, serve
from bert_jax.errors import UserError
from bert_jax.files import json_text


def fill_mask(arguments: argparse.Namespace) -> None:
    """`fill-mask DIR TEXT...`: predictions for each text."""
    if arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    if not arguments.texts and sys.stdin.isatty():
        raise UserError('name a text, as in "The [MASK] sat.", or pipe in one a line')
    texts = arguments.texts or lines_of("-")
    from bert_jax.inference.pipeline import FillMask

    predict = FillMask(arguments.source, truncation=arguments.truncate, **running(arguments))
    on_error = "raise" if len(arguments.texts) == 1 else "return"
    results = answered_by(predict, texts, on_error=on_error, top_k=arguments.top_k, targets=arguments.targets or None)
    serve(results, _show_predictions, as_json=arguments.json)


def info(arguments: argparse.Namespace) -> None:
    """`info DIR`: what is in a model."""
    from bert_jax.cli.describe import describe, show

    found = describe(arguments.source, step=arguments.step)
    if arguments.json:
        _write(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        _write(show(found, every_layer=arguments.layers))


def convert(arguments: argparse.Namespace) -> None:
    """`convert SRC DST`, `export RUN DIR`: a folder for others."""
    from bert_jax.formats.convert import convert

    written, report, has_tokenizer = convert(
        arguments.source,
        arguments.directory,
        to=arguments.to,
        head=None if arguments.head == "as-is" else arguments.head,
        step=arguments.step,
        num_labels=arguments.num_labels,
        allow_missing=arguments.allow_missing,
        pooling=arguments.pooling,
        max_shard_size=arguments.max_shard_size,
        gelu=arguments.gelu,
    )
    for note in report.notes:
        _say(note)
    if not has_tokenizer:
        _say(f"{arguments.source} has no tokenizer; the folder has none either")
    if report.unexpected:
        _say(f"left out, since head {report.head} has no place for it: {', '.join(report.unexpected)}")
    _say(f"wrote {written} (head {report.head}" + ("" if report.step is None else f", step {report.step:,}") + ")")
    _write(str(written))


def edit(arguments: argparse.Namespace) -> None:
    """`edit SRC DST`: fewer layers or heads, more words, longer inputs."""
    from bert_jax.cli.edit import edit

    written, changes, new_tokens = edit(
        arguments.source,
        arguments.directory,
        layers=arguments.keep_layers,
        student=arguments.student,
        pruned=dict(arguments.prune_heads),
        words=_lines_of(arguments.words) if arguments.words else (),
        into_unused=arguments.into_unused,
        initial=arguments.initial,
        positions=arguments.positions,
        how=arguments.how,
        step=arguments.step,
    )
    if arguments.json:
        found = {"directory": str(written), "changes": changes, "new_tokens": new_tokens}
        _write(json.dumps(found, ensure_ascii=False))
        return
    _say(f"wrote {written}: {'; '.join(changes)}")
    _write(str(written))


def score(arguments: argparse.Namespace) -> None:
    """`score TASK GOLD PREDICTIONS`: what the official script says."""
    from bert_jax.data.tasks.labelled_text import Columns
    from bert_jax.evaluation.score import score

    given = {"label": arguments.label, "id": arguments.id, "kind": arguments.kind}
    own = {name: value for name, value in given.items() if value is not None}
    if own and arguments.task != "classify":
        raise UserError(f"--label, --id, --kind are of classify; {arguments.task} has its own columns")
    scores = score(
        arguments.task,
        Path(arguments.gold),
        Path(arguments.predictions),
        no_answer_scores=Path(arguments.na_prob_file) if arguments.na_prob_file else None,
        no_answer_threshold=arguments.na_prob_thresh,
        columns=Columns(None, **own) if own else None,
    )
    if arguments.json:
        _write(json_text(scores))
    else:
        width = max(map(len, scores))
        shown = {name: f"{value:.15g}" if math.isfinite(value) else "none" for name, value in scores.items()}
        _write("\n".join(f"{name:{width}}  {value}" for name, value in shown.items()))


def _on_all_cores(verb: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        from bert_jax.runtime.cpu import use_all_cores

        use_all_cores()
        verb(arguments)

    return run


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    **{name: _on_all_cores(verb) for name, verb in {"fill-mask": fill_mask, **of_tasks.VERBS}.items()},
    "info": info,
    "convert": convert,
    "export": convert,
    "edit": edit,
    "score": score,
}


def _lines_of(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise UserError(f"{path}: holds no words; expected one a line")
    return words


def _show_predictions(text: str, result: list[Any]) -> str:
    masks = [result] if isinstance(result[0], dict) else result
    lines = [text]
    for number, predictions in enumerate(masks):
        if len(masks) > 1:
            lines.append(f"  [MASK] {number + 1} of {len(masks)}")
        width = max(len(found["token_str"]) for found in predictions)
        lines += [
            f"  {found['score']:.4f}  {found['token_str']:<{width}}  {found['sequence']}" for found in predictions
        ]
    return "\n".join(lines) + "\n"


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
