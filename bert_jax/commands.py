"""What each verb of the command line does; `bert_jax/__main__.py` has their arguments."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.inference import commands as of_tasks
from bert_jax.inference.serve import CHUNK, answered, lines_of, serve


def fill_mask(arguments: argparse.Namespace) -> None:
    """`fill-mask DIR TEXT...`: predictions for each text."""
    if arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    if not arguments.texts and sys.stdin.isatty():
        raise UserError('name a text, as in "The [MASK] sat.", or pipe in one a line')
    texts = arguments.texts or (line for line in lines_of("-") if isinstance(line, UserError) or line.strip())
    from bert_jax.inference.pipelines import FillMask

    predict = FillMask(arguments.source, truncation=arguments.truncate, cache=True)
    options = {"top_k": arguments.top_k, "targets": arguments.targets or None}
    on_error = "raise" if arguments.texts else "return"
    results = answered(texts, partial(predict.stream, chunk=CHUNK, on_error=on_error, **options))
    serve(results, _show_predictions, as_json=arguments.json)


def info(arguments: argparse.Namespace) -> None:
    """`info DIR`: what is in a model."""
    from bert_jax.describe import describe, show

    found = describe(arguments.source, step=arguments.step)
    if arguments.json:
        _write(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        _write(show(found, every_layer=arguments.layers))


def convert(arguments: argparse.Namespace) -> None:
    """`convert SRC DST`, `export RUN DIR`: a folder for others."""
    from bert_jax.convert import convert

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
    from bert_jax.edit import edit

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
    from bert_jax.score import score

    scores = score(
        arguments.kind,
        Path(arguments.gold),
        Path(arguments.predictions),
        no_answer_scores=Path(arguments.na_prob_file) if arguments.na_prob_file else None,
        no_answer_threshold=arguments.na_prob_thresh,
    )
    if arguments.json:
        _write(json.dumps(scores))
    else:
        width = max(map(len, scores))
        _write("\n".join(f"{name:{width}}  {value:.15g}" for name, value in scores.items()))


def _on_all_cores(verb: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        from bert_jax.cpu import use_all_cores

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
