"""What a run directory records about its training, in the words of a model card: settings, data, scores. No paths."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.files import read_json_lines, read_object

_OPTIMIZER = ("name", "learning_rate", "warmup_steps", "schedule", "weight_decay")
_OF_BASELINES = ("unigram_", "majority_", "baseline_")
_COSTS = ("tokens", "seconds", "cpu_seconds")
_LABELS = {
    "mlm_loss": "masked-LM loss, nats",
    "mlm_accuracy": "masked-LM accuracy",
    "mlm_perplexity": "masked-LM perplexity",
    "nsp_loss": "sentence-pair loss, nats",
    "nsp_accuracy": "sentence-pair accuracy",
}
_BASELINES = {
    "mlm_loss": ("unigram_loss", "how often each token occurs"),
    "mlm_accuracy": ("unigram_accuracy", "always the most frequent token"),
    "nsp_accuracy": ("majority_accuracy", "always the more frequent answer"),
}


class RecordedScore(NamedTuple):
    """A held-out score: its key in metrics.jsonl, what it is, its value, and a baseline if the run recorded one."""

    name: str
    label: str
    value: float
    baseline: float | None = None
    baseline_label: str | None = None


class Evaluation(NamedTuple):
    """The scores of one evaluation, and the training step at which it took place."""

    step: int
    scores: tuple[RecordedScore, ...]


def last_evaluation(run: str | os.PathLike[str], step: int | None) -> Evaluation | None:
    """The run's last evaluation up to `step` (None: of all), each score beside its baseline; None if there is none."""
    rows = [row for row in _rows(Path(run) / "metrics.jsonl") if row.get("kind") == "eval"]
    rows = [row for row in rows if step is None or row.get("step", 0) <= step]
    if not rows:
        return None
    values = {name: value for name, value in rows[-1].items() if isinstance(value, float)}
    return Evaluation(
        rows[-1]["step"],
        tuple(
            RecordedScore(name, _LABELS.get(name, name), value, *_baseline(name, values))
            for name, value in values.items()
            if not name.startswith(_OF_BASELINES) and name not in _COSTS
        ),
    )


def _baseline(name: str, values: Mapping[str, float]) -> tuple[float | None, str | None]:
    """The baseline of a score and what it is; a fine-tuning run records that of NAME as baseline_NAME."""
    key, label = _BASELINES.get(name, (f"baseline_{name}", "the most frequent answer of the training data"))
    return (values[key], label) if key in values else (None, None)


def training_record(run: str | os.PathLike[str], step: int | None) -> str:
    """What a run directory records about its training, as the Markdown of a model card.

    Args:
        run: the run directory; config.json, metrics.jsonl and environment.json are read if they exist, and the manifest
            of the training data if it is still where the run read it.
        step: the exported step. The scores are those of the last evaluation up to it; None: the last of all.
    """
    folder = Path(run)
    config = _object(folder / "config.json")
    parts = [table(_settings(config, _object(folder / "environment.json"), step))]
    if data := _data(folder, config):
        parts += ["## What it was trained on\n", table(data)]
    if found := last_evaluation(folder, step):
        where = f"On text that it was not trained on, at step {found.step:,}."
        parts += ["## Scores\n", where + "\n", _score_table(found.scores)]
    return "\n".join(parts)


def table(facts: Mapping[str, Any]) -> str:
    """Facts as a Markdown table in their order; "Not recorded." if there are none."""
    if not facts:
        return "Not recorded.\n"
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in facts.items()]
    return "\n".join(["| what | value |", "|---|---|", *rows, ""])


def _settings(config: Mapping[str, Any], environment: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {} if step is None else {"step": f"{step:,}"}
    phases = config.get("phases")
    if isinstance(phases, list):
        facts["phases (sequence length, batch, steps)"] = "; ".join(", ".join(map(str, phase)) for phase in phases)
    if "task" in config:
        facts |= {name: config[name] for name in ("task", "epochs", "batch", "max_length") if name in config}
    for section, names in (("optimizer", _OPTIMIZER), ("model", ("dtype",)), ("", ("seed",))):
        fields = config.get(section, {}) if section else config
        if isinstance(fields, Mapping):
            facts |= {f"{section} {name}".strip(): fields[name] for name in names if fields.get(name) is not None}
    if environment.get("init"):
        facts["started from"] = environment["init"]
    if "device_kind" in environment:
        facts["devices"] = f"{environment.get('devices', 1)} {environment['device_kind']}"
    return facts


def _data(run: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Size and form of the prepared text of a pretraining run; {} if its manifest cannot be found."""
    named = config.get("data")
    places = [run / "data", *([Path(named)] if isinstance(named, str) and "://" not in named else [])]
    manifest = next((found for place in places if (found := _object(place / "manifest.json"))), {})
    text, tokenizer = manifest.get("report", {}).get("train"), manifest.get("tokenizer", {})
    if "task" in config or not text or not tokenizer:
        return {}
    return {
        "documents": f"{text['documents']:,}",
        "sentences": f"{text['sentences']:,}",
        "tokens": f"{text['tokens']:,}",
        "sentences that repeat another one": f"{text['duplicate_lines']:.1%}",
        "vocabulary": f"{tokenizer['vocab_size']:,} pieces, {'cased' if tokenizer['cased'] else 'uncased'}",
        "sentence pairs": {"nsp": "next sentence", "sop": "sentence order"}.get(manifest["objective"], "none"),
    }


def _score_table(scores: tuple[RecordedScore, ...]) -> str:
    rows = [
        f"| {_cell(score.label)} | {score.value:.4g} | "
        + ("| |" if score.baseline is None else f"{score.baseline:.4g} | {score.baseline_label} |")
        for score in scores
    ]
    return "\n".join(["| score | this model | baseline | what the baseline is |", "|---|---:|---:|---|", *rows, ""])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, UserError):
        return {}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_json_lines(path)
    except UserError:  # a card does without the scores of a damaged file
        return []
