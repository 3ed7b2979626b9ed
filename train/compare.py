"""Compares runs: the curves of several in one picture, and their final scores in one table.

    python -m train.compare RUN RUN ... [--by step|tokens|seconds] [--output compare.png] [--overwrite] [--json]

The runs are pretraining runs or fine-tuning runs, finished or not, local or on a bucket; a sweep of pretraining stands
for all its members. The scores are those of the last evaluation (pretraining) or of the one that chose the model
(fine-tuning). A line on stderr says where runs differ in what makes scores comparable: the task, the held-out data and
its masks, the length of its rows, the number of examples, the vocabulary.
"""

import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.cli.arguments import Parser
from bert_jax.cli.program import in_own_words
from bert_jax.errors import UserError
from bert_jax.files import check_reachable, near_path, read_summed, write_whole
from bert_jax.formats.training_record import read_metrics, read_run_config, scores_of_average
from train.run.ending.stopping import EXIT_DONE, keeps_nothing, run_program
from train.run.log.curves import SCORES, has_glyphs, png
from train.run.log.run_log import clock, score_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIVERGED = 10  # times the highest loss of the run whose highest is the lowest
AXES = {"step": "step", "tokens": "tokens (positions, padding included)", "seconds": "wall-clock seconds of training"}


@dataclass(frozen=True)
class RunToCompare:
    """A run directory as its config and its metrics describe it.

    Attributes:
        name: the path as the user gave it.
        path: the directory.
        config: config.json.
        rows: metrics.jsonl.
    """

    name: str
    path: epath.Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def task(self) -> str | None:
        """The fine-tuning task; None for a pretraining run."""
        return self.config.get("task")

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Of a run with an average of its weights, with the average's scores: that is what it exports."""
        return [row | scores_of_average(row) for row in self.rows if row["kind"] == "eval"]

    @property
    def loss(self) -> str:
        """The name of the loss to draw."""
        return "mlm_loss" if self.task is None else "loss"

    @cached_property
    def metric(self) -> str:
        """The score to compare: the one that selects the best model, or masked LM's accuracy."""
        if self.task is None:
            return "mlm_accuracy"
        names = list(self.evaluations[0]) if self.evaluations else []
        of_many = (name.removesuffix("_best") for name in names if name.endswith("_best"))
        first = next((name for name in names if name in SCORES), "accuracy")
        return self.config.get("metric") or next(of_many, None) or ("f1" if "f1" in names else first)

    def score_of(self, row: dict[str, Any]) -> float | None:
        """The score in a row; for many runs in one program that of the best of them."""
        return row.get(f"{self.metric}_best", row.get(self.metric))

    def baseline_of(self, row: dict[str, Any]) -> float | None:
        return row.get("unigram_accuracy" if self.task is None else f"baseline_{self.metric}")

    @cached_property
    def final(self) -> dict[str, Any]:
        """The evaluation whose scores are compared; {} before the first."""
        chosen = [row for row in self.evaluations if row.get("best")]
        return (chosen or self.evaluations or [{}])[-1]

    @property
    def held_out(self) -> str:
        """Where what the run is evaluated on comes from, for people."""
        config = self.config
        if self.task is None:
            if config.get("eval_data"):
                return config["eval_data"]
            # The held-out losses of several directories are averaged by their shares.
            given = {name: config.get(name) for name in ("data_shares", "data_temperature")}
            shares = [f"{name}={value}" for name, value in given.items() if value not in (None, [], 1)]
            return ", ".join([config.get("data") or str(self.path / "data"), *shares])
        shared = config.get("dev") is not None and not epath.Path(config["dev"]).exists()  # dev=0.1
        names = ("data", "dev", *(("train", "split_seed") if shared else ()))
        return ", ".join(f"{name}={config[name]}" for name in names if config.get(name) is not None)

    @cached_property
    def held_out_key(self) -> str:
        """The same for equal held-out data, in another folder too if that was prepared by us."""
        if self.task is not None:
            return self.held_out
        try:
            content = (epath.Path(self.held_out) / "manifest.json").read_bytes()
        except Exception:  # it is gone, or in a bucket that this machine does not reach
            content = self.held_out.encode()
        return hashlib.sha256(content).hexdigest()

    @cached_property
    def phase(self) -> list[Any]:
        """Length, batch and more of the phase of the final evaluation: a run that goes on may be in an early one."""
        ends = itertools.accumulate(steps for _, _, steps, *_ in self.config["phases"])
        done = self.final.get("step", math.inf)
        return next(
            (of for of, end in zip(self.config["phases"], ends, strict=True) if done <= end), self.config["phases"][-1]
        )

    @property
    def lengths(self) -> str:
        """The length of the held-out rows, for people."""
        return f"rows of {self.phase[0]}"

    @property
    def examples(self) -> str:
        """How many held-out examples an evaluation takes at most, for people."""
        return f"eval_batches={self.config.get('eval_batches')} of {self.phase[1]} examples"

    @property
    def masks(self) -> str:
        """How held-out tokens are masked. A run without such a field masked them as its training text, by its seed."""
        if "eval_masking" not in self.config:
            return f"as in training, masking={self.config.get('masking')}, seed={self.config.get('seed')}"
        return f"eval_masking={self.config['eval_masking']}"

    @cached_property
    def vocabulary(self) -> str:
        """A hash of the tokenizer's files; "" without any."""
        folder = self.path / "tokenizer"
        files = sorted(folder.iterdir(), key=lambda path: path.name) if folder.exists() else []
        digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files))
        return digest.hexdigest()[:8] if files else ""

    def facts(self) -> dict[str, Any]:
        """The row of the table, as JSON values; null for what is unknown."""
        last, final = self.rows[-1], self.final
        found = {
            "run": self.name,
            "task": self.task,
            "step": last["step"],
            "tokens": last.get("tokens"),
            "seconds": last.get("seconds"),
            "cpu_seconds": last.get("cpu_seconds"),
            "evaluated at": final.get("step"),
            "metric": self.metric,
            "score": self.score_of(final),
            "baseline": self.baseline_of(final),
            "loss": final.get(self.loss),
        }
        if self.task is None:
            names = ("unigram_loss", "mlm_perplexity", "nsp_accuracy", "majority_accuracy")
            scored = [row for row in self.evaluations if "blimp_accuracy" in row]
            found |= {name: final.get(name) for name in names}
            found["blimp_accuracy"] = scored[-1]["blimp_accuracy"] if scored else None
        return found


def read_run(name: str) -> RunToCompare:
    """Opens a run directory.

    Raises:
        FileNotFoundError: there is none; names similar ones.
        UserError: it has no metrics yet, or is damaged.
    """
    check_reachable(name)
    path = epath.Path(name)
    if not (path / "config.json").exists():
        if path.exists():
            raise FileNotFoundError(f"{name}: has no config.json, so it is not a run directory")
        raise FileNotFoundError(f"{name}: no such run directory{near_path(name)}")
    config = read_run_config(path / "config.json")
    if not (rows := read_metrics(path / "metrics.jsonl")):
        raise UserError(f"{name}: has no metrics yet; a run writes its first after log_every steps")
    return RunToCompare(name, path, config, rows)


def members_of(name: str) -> list[str]:
    """The runs of a sweep (`sweep=`) that have metrics, in its order; [name] for anything else."""
    check_reachable(name)
    record = epath.Path(name) / "sweep.json"
    if (epath.Path(name) / "config.json").exists() or not record.exists():
        return [name]
    members = read_summed(record, "name the runs in members/ one by one").get("members", [])
    found = [os.path.join(name, "members", member["name"]) for member in members]
    found = [run for run in found if read_metrics(epath.Path(run) / "metrics.jsonl")]
    if not found:
        raise UserError(f"{name}: no member of this sweep has metrics yet; it writes its first after log_every steps")
    return found


def differences(runs: Sequence[RunToCompare]) -> list[str]:
    """A line for each way in which the scores of the runs do not compare."""

    def differing(
        what: str, of: Callable[[RunToCompare], str | None], told: Callable[[RunToCompare], str | None] | None = None
    ) -> list[str]:
        firsts = {of(run): run for run in reversed(runs)}
        if len(firsts) < 2:
            return []
        return [f"{what} ({'; '.join(f'{run.name}: {(told or of)(run)}' for run in reversed(firsts.values()))})"]

    found = differing("the runs have different tasks, so their scores do not compare", lambda run: run.task)
    found += differing("the runs are scored by different metrics", lambda run: run.metric)
    held_out = "the runs are evaluated on different held-out data"
    found += differing(held_out, lambda run: run.held_out_key, lambda run: run.held_out)
    if runs[0].task is None:
        lengths = "the runs are evaluated on rows of different lengths, so their losses do not compare"
        found += differing(lengths, lambda run: run.lengths)
        found += differing(
            "the runs are evaluated with different masks, so their losses do not compare", lambda run: run.masks
        )
        vocabularies = "the runs have different vocabularies, so their losses do not compare"
        found += differing(vocabularies, lambda run: run.vocabulary)
        # With the same text, masks and vocabulary, and frequencies of the same training text, only other examples have
        # another unigram loss.
        lines = [line for run in runs if (line := run.final.get("unigram_loss")) is not None]
        trained = {run.config.get("eval_data") and run.config.get("data") for run in runs}
        if not found and len(trained) == 1 and lines and max(lines) - min(lines) > 1e-3:
            found += differing("the runs are evaluated on other numbers of held-out examples", lambda run: run.examples)
    return found


def figure_of(runs: Sequence[RunToCompare], by: str) -> "Figure":
    """The picture: losses and scores of the runs by step, tokens or seconds, with the baselines as dashed lines.

    Raises:
        UserError: a run was trained before metrics.jsonl had `by`.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    for run in runs:
        if run.rows[-1].get(by) is None:
            raise UserError(f"{run.name}: its metrics have no {by}, as an older version trained it; say --by step")
    figure = Figure(figsize=(12, 5 + 0.2 * len(runs)), layout="constrained")
    loss, score = figure.subplots(1, 2)
    label, scale = _unit(by, max(run.rows[-1][by] for run in runs))
    in_percent = max((run.score_of(row) or 0 for run in runs for row in run.evaluations), default=0) > 1

    tops = [max((row[run.loss] for row in run.rows if row.get(run.loss) is not None), default=0) for run in runs]
    highest = _DIVERGED * min(filter(None, tops), default=math.inf)  # so that a diverged run leaves the others legible

    def loss_of(row: dict[str, Any]) -> float | None:
        value = row.get(runs[0].loss)
        return value if value is None or value <= highest else None

    def line(axes, run: RunToCompare, rows: list[dict[str, Any]], of: Callable[[dict], Any], **style) -> None:
        points = [(row[by] / scale, of(row)) for row in rows if row.get(by) is not None and of(row) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), **style)

    labels = [run.name if has_glyphs(run.name) else f"run {number}" for number, run in enumerate(runs, 1)]
    labels = [f"{one} (beyond the picture)" if top > highest else one for one, top in zip(labels, tops, strict=True)]
    for number, run in enumerate(runs):
        style = {"color": f"C{number % 10}", "linestyle": ("-", "-.", ":")[number // 10 % 3]}
        points = style | {"marker": "o", "markersize": 3}
        train = [row for row in run.rows if row["kind"] == "train"]
        line(loss, run, train, loss_of, alpha=0.25, **style)
        line(loss, run, run.evaluations, loss_of, label=labels[number], **points)
        line(score, run, run.evaluations, run.score_of, **points)
        if run.final.get("best") and run.final.get(by) is not None:
            at = run.final[by] / scale
            score.plot(at, run.score_of(run.final), "*", color=style["color"], markeredgecolor="black", markersize=13)
    _baselines(loss, [run.final.get("unigram_loss") for run in runs])
    _baselines(score, [run.baseline_of(run.final) for run in runs])
    metrics = " / ".join(dict.fromkeys(run.metric.replace("mlm", "masked LM").replace("_", " ") for run in runs))
    loss.set_title("masked LM loss (nats per masked token)" if runs[0].task is None else "loss")
    score.set_title(f"held-out {metrics}{' (percent)' if in_percent else ''}")
    for axes in (loss, score):
        axes.set_xlabel(label)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    drawn = {line.get_label() for line in loss.lines}
    for number, run in enumerate(runs):  # the legend has runs without a held-out loss too
        if labels[number] not in drawn:
            what = "" if run.evaluations else " (no evaluation yet)"
            loss.plot([], [], color=f"C{number % 10}", label=f"{labels[number]}{what}")
    loss.plot([], [], color="gray", alpha=0.4, label="training batches (faint)")
    loss.plot([], [], color="gray", linestyle="--", linewidth=1, label="baselines (dashed)")
    if any(run.final.get("best") for run in runs):
        loss.plot([], [], "*", color="white", markeredgecolor="black", markersize=11, label="chose the model")
    for text in figure.legend(fontsize="small", loc="outside lower left", ncols=2).get_texts():
        text.set_parse_math(False)  # a name may have a dollar sign
    return figure


def _baselines(axes, values: list[float | None]) -> None:
    """One gray line if the runs share their baseline, else one in the colour of each; `values`: an entry per run."""
    known = [(number, value) for number, value in enumerate(values) if value is not None]
    same = len({round(value, 2) for _, value in known}) == 1
    for number, value in known[:1] if same else known:
        colour = "gray" if same else f"C{number % 10}"
        axes.axhline(value, color=colour, linestyle="--", linewidth=1)


def _unit(by: str, most: float) -> tuple[str, float]:
    """The label of the axis, and what to divide by."""
    if by == "seconds" and most > 120:
        unit, scale = ("hours", 3600) if most > 7200 else ("minutes", 60)
        return AXES[by].replace("seconds", unit), scale
    return AXES[by], 1


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """The final scores of the runs, from `RunToCompare.facts`."""
    table = Table(title="final scores")
    pretraining = rows[0]["task"] is None
    table.add_column("run", overflow="fold")
    names = ("steps", "tokens", "wall time", "CPU time", "at step", "loss")
    more = ("unigram", "accuracy", "next sentence") if pretraining else ("score", "", "baseline")
    has_pairs = pretraining and any(row["blimp_accuracy"] is not None for row in rows)
    more += ("BLiMP",) if has_pairs else ()
    for name in (*names, *more):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row['step']:,}", "" if row["tokens"] is None else f"{row['tokens']:,}"]
        cells += ["" if row[name] is None else clock(row[name]) for name in ("seconds", "cpu_seconds")]
        cells += ["" if row["evaluated at"] is None else f"{row['evaluated at']:,}", score_text(row["loss"])]
        if pretraining:
            cells += [score_text(row["unigram_loss"]), score_text(row["score"]), score_text(row["nsp_accuracy"])]
            cells += [score_text(row["blimp_accuracy"])] if has_pairs else []
        else:
            cells += [score_text(row["score"]), row["metric"], score_text(row["baseline"])]
        table.add_row(row["run"], *cells)
    return table


@keeps_nothing
def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code, raises UserError for the user's mistakes."""
    parser = Parser(prog=in_own_words("python -m train.compare"), description=in_own_words(__doc__ or ""))
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory")
    parser.add_argument("--by", choices=tuple(AXES), default="step", help="the horizontal axis (default: step)")
    parser.add_argument("--output", metavar="FILE", default="compare.png", help="the picture (default: compare.png)")
    parser.add_argument("--overwrite", action="store_true", help="replace the picture if it exists")
    parser.add_argument("--json", action="store_true", help="the table as one JSON object on stdout")
    words = parser.parse_intermixed_args(argv)
    output = epath.Path(words.output)
    if output.suffix != ".png":
        raise UserError(f"--output: found {words.output}; expected a name that ends in .png")
    if "://" not in words.output and not output.parent.exists():
        raise UserError(f"--output: found {words.output}, but there is no folder {output.parent}")
    if (output.exists() or os.path.lexists(output)) and not words.overwrite:
        raise UserError(f"{output}: exists; say --overwrite to replace it, or another --output")
    runs = [read_run(name) for name in dict.fromkeys(one for name in words.runs for one in members_of(name))]
    pretraining = [run.name for run in runs if run.task is None]
    if tuned := [run.name for run in runs if run.task is not None and pretraining]:
        raise UserError(f"{pretraining[0]} is a pretraining run and {tuned[0]} a fine-tuning run; compare one kind")
    picture, notes = png(figure_of(runs, words.by)), differences(runs)
    write_whole(output, picture)
    rows = [run.facts() for run in runs]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if words.json:
        print(json.dumps({"runs": rows, "notes": notes, "picture": str(output)}, ensure_ascii=False))
        return EXIT_DONE
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=160)
    out.print(table_of(rows))
    out.print(f"curves: {output}", soft_wrap=True, markup=False)
    return EXIT_DONE


if __name__ == "__main__":
    run_program(main)
