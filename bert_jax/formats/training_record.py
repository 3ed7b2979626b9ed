"""What a run directory records about its training, in the words of a model card: settings, data, scores. No paths."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.config import is_number
from bert_jax.errors import UserError, quoted
from bert_jax.files import read_json_lines, read_object, read_summed

if TYPE_CHECKING:
    from etils import epath

_OPTIMIZER = ("name", "learning_rate", "warmup_steps", "schedule", "weight_decay")
# Of a teacher, with the values that hold where the config has none; this package cannot import DistillationConfig.
_DISTILLATION = {"temperature": 2.0, "alpha_ce": 5.0, "alpha_mlm": 2.0, "alpha_cos": 1.0}
_UNPUBLISHED = "a model that is not published"
_OF_BASELINES = ("unigram_", "majority_", "baseline_")
_OF_AVERAGE = "average_mlm_"
_OF_THE_EXPORT = ("blimp_", "probe_", "finetune_")
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


def read_metrics(path: "Path | epath.Path") -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without a last line that a killed program left unfinished; [] if there is no file.

    Each row has a "kind" (text) and a "step" (whole number); other values are numbers, true, false or null.

    Raises:
        UserError: the file is too large (`files.read_json_lines`), or a line is not such a row.
    """
    rows = read_json_lines(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or type(row.get("step")) is not int:
            raise UserError(f"{path}, line {number}: found {quoted(row)}; expected an object with kind and step")
        for name, value in row.items():
            is_number = isinstance(value, int | float) and abs(value) < 1e300
            if name != "kind" and value is not None and not is_number:
                raise UserError(f"{path}, line {number}: {quoted(name)} is {quoted(value)}; expected a number or null")
    return rows


def read_run_config(path: "Path | epath.Path", *, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The config.json of a run, in which the fields that are read to describe a run are of the right kinds.

    Args:
        path: the file.
        needs: fields that the run must have, with the numbers in them.

    Raises:
        UserError: the file is not JSON, is not that of a run, or a field is missing or of another kind.
    """
    config = read_summed(path)
    if "task" not in config and "phases" not in config:
        raise UserError(f"{path.parent}: its config.json is not that of a run; expected a directory that a run= named")

    def require(name: str, fits: bool, expected: str) -> None:
        if not fits:
            raise UserError(f"{path}: {name} is {quoted(config.get(name))}; expected {expected}")

    for name in _TEXTS:
        require(name, config.get(name) is None or _is_text(config[name]), "a text or null")
    for name in needs:
        require(name, name in config, "an object")
    if "phases" in config:
        phases = config["phases"]
        are_rows = isinstance(phases, list) and all(isinstance(row, list) and len(row) >= 3 for row in phases)
        are_sizes = are_rows and all(type(size) is int and 0 < size < 1 << 62 for row in phases for size in row[:3])
        require("phases", bool(phases) and are_sizes, "a list of [length, batch, steps]")
    for name, fields in _FIELDS.items():
        found = config.get(name, {})
        fits = isinstance(found, dict)
        if fits and name in needs:
            fits = all(_is_such(found.get(field), least) for field, least in fields.items())
        require(name, fits, f"an object with {', '.join(fields)}")
    return config


def _is_text(value: Any) -> bool:
    """Whether a value is a text that can be a path."""
    return isinstance(value, str) and "\0" not in value and not re.search("[\ud800-\udfff]", value)


_TEXTS = ("task", "data", "eval_data", "train", "dev", "metric", "init")
# The least value of each number; None: a text.
_FIELDS: dict[str, dict[str, float | None]] = {
    "optimizer": {"name": None, "learning_rate": 0, "warmup_steps": 0},
    "model": {"hidden_size": 1, "vocab_size": 2},
}


def _is_such(value: Any, least: float | None) -> bool:
    if least is None:
        return isinstance(value, str)
    return is_number(value) and least <= value < 1e18


def scores_of_average(row: Mapping[str, Any]) -> dict[str, Any]:
    """The scores in an evaluation of the average of a run's weights, by the names that those of the weights have."""
    return {name.removeprefix("average_"): value for name, value in row.items() if name.startswith(_OF_AVERAGE)}


def last_evaluation(run: str | os.PathLike[str], step: int | None, *, of_average: bool = False) -> Evaluation | None:
    """The run's last evaluation up to `step` (None: of all), each score beside its baseline; None if there is none.

    A run that keeps an average of its weights records scores of both; here are those of the average, or of the last
    weights.
    """
    every = _rows(Path(run) / "metrics.jsonl")
    rows = [row for row in every if row["kind"] == "eval" and (step is None or row["step"] <= step)]
    if not rows:
        return None
    values = _of_weights({name: value for name, value in rows[-1].items() if isinstance(value, float)}, of_average)
    return Evaluation(
        rows[-1]["step"],
        tuple(
            RecordedScore(name, _LABELS.get(name, name), value, *_baseline(name, values))
            for name, value in values.items()
            if not name.startswith(_OF_BASELINES) and name not in _COSTS
        ),
    )


def _of_weights(values: dict[str, float], of_average: bool) -> dict[str, float]:
    """The values of an evaluation that are those of the average of the weights, or of the last weights."""
    if not (averages := scores_of_average(values)):
        return values
    if of_average:
        return averages | {name: v for name, v in values.items() if name.startswith((*_OF_BASELINES, *_OF_THE_EXPORT))}
    return {name: v for name, v in values.items() if not name.startswith((_OF_AVERAGE, *_OF_THE_EXPORT))}


def _baseline(name: str, values: Mapping[str, float]) -> tuple[float | None, str | None]:
    """The baseline of a score and what it is; a fine-tuning run records that of NAME as baseline_NAME."""
    key, label = _BASELINES.get(name, (f"baseline_{name}", "the most frequent answer of the training data"))
    return (values[key], label) if key in values else (None, None)


def training_record(run: str | os.PathLike[str], step: int | None, *, of_average: bool = False) -> str:
    """What a run directory records about its training, as the Markdown of a model card.

    Args:
        run: the run directory; config.json, metrics.jsonl and environment.json are read if they exist, and the manifest
            of the training data if it is still where the run read it.
        step: the exported step. The scores are those of the last evaluation up to it; None: the last of all.
        of_average: whether the model is the average of the run's weights, and not the last ones.
    """
    folder = Path(run)
    config = _found(read_run_config, folder / "config.json")
    parts = [table(_settings(config, _found(read_object, folder / "environment.json"), step))]
    if data := _data(folder, config):
        parts += ["## What it was trained on\n", table(data)]
    if found := last_evaluation(folder, step, of_average=of_average):
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
    if config.get("teacher"):
        given = config.get("distillation")
        weights = _DISTILLATION | (dict(given) if isinstance(given, Mapping) else {})
        facts["distilled from"] = environment.get("teacher") or _UNPUBLISHED
        facts |= {f"distillation {name}": weights[name] for name in _DISTILLATION}
    if "device_kind" in environment:
        facts["devices"] = f"{environment.get('devices', 1)} {environment['device_kind']}"
    return facts


def _data(run: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Size and form of the prepared text of a pretraining run; {} if its manifest cannot be found."""
    named = config.get("data")
    places = [run / "data", *([Path(named)] if isinstance(named, str) and "://" not in named else [])]
    manifest = next((found for place in places if (found := _found(read_object, place / "manifest.json"))), {})
    if "task" in config or not manifest:
        return {}
    try:
        return _facts_of(manifest)
    except (TypeError, ValueError, KeyError, AttributeError):  # a card does without the facts of a damaged manifest
        return {}


def _facts_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    text, tokenizer = manifest["report"]["train"], manifest["tokenizer"]
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


def _found(read: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    try:
        return read(path)
    except (OSError, UserError):
        return {}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_metrics(path)
    except UserError:  # a card does without the scores of a damaged file
        return []
