"""Recipes for little text and little time, one setting at a time: loss by tokens and CPU seconds, over seeds.

    python -m benchmarks.recipes ROW ... --data DIR --folder DIR [--tokens 4.1] [--seeds 0,1] [--eval-data DIR]
        [--config configs/wiki_tiny.py] [--length 64] [--blimp FOLDER] [--blimp-pairs N] [--json FILE] [KEY=VALUE ...]

Every run is `python -m train.pretrain CONFIG` (by default BERT-tiny, no dropout, bfloat16) with a row's settings and
then the given ones, on one core. `--tokens` (millions) is its length, to which every schedule is bound. `--data` is
prepared for rows of `--length`. After the run its model is scored by the same masks on the held-out text of
`--eval-data` (a step of rate 0 from its export), and on BLiMP. A run that is in `--folder` already is taken up where
it stopped, and scored again if that is asked in other words. Its name has its settings, or a hash of them where they
are long; its config.json has them in any case.

CPU seconds are the run's own count, evaluations included. "leaves" is the
first evaluation, in million tokens, with a loss below 6.2 nats: the plateau of the published start is above.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import bert_jax
from benchmarks.machine import describe_cpu

EVALUATIONS, EVAL_ROWS = 16, 3_200
PLATEAU = 6.2
LONGEST = 150  # characters of settings in a run's name; a file's name ends at 255 bytes
CONFIG = "configs/wiki_tiny.py"


class Part(NamedTuple):
    """A share of a run's tokens, with the rows of its batches, its masks and a factor of the schedule's rate.

    Of packed data `batch` too is the number of rows; each has several examples (`Row.examples`). `length` is that of
    the rows where it differs from the run's.
    """

    share: float
    batch: int
    mask: float | None = None
    rate: float = 1.0
    length: int | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """Settings that differ from the config's, the parts of the run, and the examples that share a row on average.

    With `logits` the run starts from a model that is drawn with wired heads, and whose logits are that many times as
    large.
    """

    settings: tuple[str, ...] = ()
    parts: tuple[Part, ...] = (Part(1, 64),)
    examples: float = 1.0
    logits: float | None = None

    def steps(self, length: int, tokens: float) -> list[int]:
        return [round(part.share * tokens / ((part.length or length) * part.batch)) for part in self.parts]

    def phases(self, length: int, tokens: float) -> str:
        found = zip(self.parts, self.steps(length, tokens), strict=True)
        each = (
            f"({part.length or length},{round(part.batch * self.examples)},{steps},{part.mask},None,{part.rate}),"
            for part, steps in found
        )
        return f"phases=({''.join(each)})"


_SCHEDULE = ("optimizer.warmup_steps=none", "optimizer.warmup_share=0.05", "optimizer.decay_from=warmup", "packing=no")
START = ("start.range=width", "start.positions=fourier", "start.heads=((0, -1, 1),)")
_WIRED = (*_SCHEDULE, *START)
_MUON = (*_WIRED, "optimizer.name=muon")
_FREE = (*_WIRED, "optimizer.name=schedule-free", "optimizer.schedule=constant", "optimizer.bias_correction=true")
_MASKS_30 = ("masking.probability=0.3", "masking.max_predictions=20")
_MASKS_40 = ("masking.probability=0.4", "masking.max_predictions=26")
_DROPOUT = ("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1")
# That of b2=0.98 with batches of 64 x 64; the rates other than 2e-3 are in proportion to the root of a batch's rows.
_HALF_LIFE = "optimizer.b2_half_life=140000"
_SMALL_BATCHES = (*_MUON, _HALF_LIFE, *_MASKS_30)
_MASKED = "masking.corruption=(1.0,0.0,0.0)"  # no random token, none kept
_SENTENCES = 2.62  # plain sentences of English Wikipedia in a row of 64
# The rate grows with the root of the batch, and falls to zero with the schedule.
_RAMP = (Part(0.125, 16, 0.3), Part(0.25, 32, 0.3, 1.4), Part(0.475, 64, 0.3, 2), Part(0.15, 64, 0.15, 2))

ROWS = {
    "plain": Row(_SCHEDULE),
    "wired": Row(_WIRED),
    "wired-batch-32": Row(_WIRED, (Part(1, 32),)),
    "muon": Row(_MUON),
    "muon-4e-3": Row((*_MUON, "optimizer.learning_rate=4e-3")),
    "muon-8e-3": Row((*_MUON, "optimizer.learning_rate=8e-3")),
    "muon-masks-30": Row((*_MUON, *_MASKS_30)),
    "muon-masks-40": Row((*_MUON, *_MASKS_40)),
    "muon-masks-30-15": Row(_MUON, (Part(0.75, 64, 0.3), Part(0.25, 64, 0.15))),
    "muon-batch-32": Row(_MUON, (Part(1, 32),)),
    "muon-batch-32-half-life": Row((*_MUON, _HALF_LIFE), (Part(1, 32),)),
    "muon-batch-32-1.4e-3": Row((*_MUON, _HALF_LIFE, "optimizer.learning_rate=1.4e-3"), (Part(1, 32),)),
    "muon-batch-16-half-life": Row((*_MUON, _HALF_LIFE), (Part(1, 16),)),
    "muon-batch-16-masks-30-15": Row((*_MUON, _HALF_LIFE), (Part(0.75, 16, 0.3), Part(0.25, 16, 0.15))),
    "muon-ramp": Row((*_MUON, _HALF_LIFE), _RAMP),
    "muon-ramp-masks-15": Row((*_MUON, _HALF_LIFE), tuple(part._replace(mask=0.15) for part in _RAMP)),
    "muon-ramp-batch-64": Row((*_MUON, _HALF_LIFE), (Part(0.85, 64, 0.3), Part(0.15, 64, 0.15))),
    "hour": Row(
        (*_MUON, _HALF_LIFE, "optimizer.schedule=stable", "optimizer.decay_share=0.4"),
        (Part(0.85, 64, 0.3), Part(0.15, 64, 0.15)),
    ),
    "wired-batch-16-half-life": Row((*_WIRED, _HALF_LIFE), (Part(1, 16),)),
    "muon-batch-8-half-life": Row((*_MUON, _HALF_LIFE), (Part(1, 8),)),
    "muon-batch-16-1e-3": Row((*_MUON, _HALF_LIFE, "optimizer.learning_rate=1e-3"), (Part(1, 16),)),
    "blocks": Row(_SMALL_BATCHES, (Part(1, 32),)),
    "blocks-masked": Row((*_SMALL_BATCHES, _MASKED), (Part(1, 32),)),
    "sentences": Row((*_SMALL_BATCHES, "packing=yes"), (Part(1, 32),), _SENTENCES),
    "sentences-masked": Row((*_SMALL_BATCHES, "packing=yes", _MASKED), (Part(1, 32),), _SENTENCES),
    "sentences-ramp": Row((*_MUON, _HALF_LIFE, "packing=yes", _MASKED), _RAMP, _SENTENCES),
    "muon-stable": Row((*_MUON, "optimizer.schedule=stable", "optimizer.decay_share=0.4")),
    "free": Row(_FREE),
    "free-4e-3": Row((*_FREE, "optimizer.learning_rate=4e-3")),
    "muon-average": Row((*_MUON, "optimizer.average_half_life=100000")),
    "muon-dropout": Row((*_MUON, *_DROPOUT)),
    "muon-unigram": Row((*_MUON, "start.output_bias=unigram")),
    "muon-range-model": Row((*_MUON, "start.range=model")),
    "muon-both-layers": Row((*_MUON, "start.heads=((0, -1, 1), (1, -1, 1))")),
    "muon-not-wired": Row((*_MUON, "start.positions=random", "start.heads=()")),
    "muon-logits-half": Row((*_SCHEDULE, "optimizer.name=muon"), logits=0.5),
    "muon-logits-twice": Row((*_SCHEDULE, "optimizer.name=muon"), logits=2.0),
    "muon-no-decay": Row((*_MUON, "optimizer.weight_decay=0")),
    "muon-32-64": Row(_MUON, (Part(0.5, 128, length=32), Part(0.5, 64))),
}


def main(argv: list[str]) -> int:
    given = _arguments(argv)
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    results = []
    for name in given.rows:
        for seed in given.seeds:
            found = _run(name, seed, folder, given)
            results.append(found)
            print(json.dumps({key: value for key, value in found.items() if key != "curve"}), flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps({"cpu": describe_cpu(), "runs": results}, indent=1) + "\n")
    _print_table(results)
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", help=f"{', '.join(ROWS)}, or KEY=VALUE")
    parser.add_argument("--data", required=True)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--folder", required=True, help="where the runs are kept")
    parser.add_argument("--tokens", type=float, default=4.1, help="millions")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    parser.add_argument("--eval-data", help="default: --data")
    parser.add_argument("--blimp", help="a folder of BLiMP's sets")
    parser.add_argument("--blimp-pairs", type=int, help="of each set, from its beginning; default: all")
    parser.add_argument("--json")
    given = parser.parse_intermixed_args(argv)
    given.settings = [row for row in given.rows if "=" in row]
    given.rows = [row for row in given.rows if "=" not in row]
    if unknown := [row for row in given.rows if row not in ROWS]:
        parser.error(f"{unknown[0]} is no row; expected one of {', '.join(ROWS)}")
    if given.blimp_pairs is not None and not given.blimp:
        parser.error("--blimp-pairs is for --blimp FOLDER, which is not given")
    for folder in filter(None, (given.data, given.eval_data)):
        if not Path(folder).is_dir():
            parser.error(f"{folder} is no folder; prepare one with python -m train.prepare TEXT --output {folder}")
        if not any(Path(folder, "held-out").glob("*")):
            parser.error(f"{folder} has no held-out text; prepare it with --held-out 0.005")
    return given


def _run(name: str, seed: int, folder: Path, given: argparse.Namespace) -> dict:
    """Trains and scores one row with one seed; what is on disk already, by the same words, is not done again."""
    row = ROWS[name]
    phases = row.phases(given.length, given.tokens * 1e6)
    steps = sum(row.steps(given.length, given.tokens * 1e6))
    config = "" if given.config == CONFIG else f"-{Path(given.config).stem}"
    rows = "" if given.length == 64 else f"-{given.length}"
    changed = config + rows + "".join("-" + re.sub(r"[^\w.]+", "-", setting) for setting in given.settings)
    shown = changed if len(changed) <= LONGEST else f"-{hashlib.sha256(changed.encode()).hexdigest()[:12]}"
    run = folder / f"{name}{shown}-{given.tokens:g}M-seed{seed}"
    result = run.with_suffix(run.suffix + ".json")
    # The run's name has not all of this, so a figure of other text, or one without BLiMP, must not pass for this one.
    asked = {name: getattr(given, name) for name in ("config", "data", "eval_data", "blimp", "blimp_pairs", "settings")}
    if result.is_file() and (found := json.loads(result.read_text())).get("asked") == asked:
        return found
    every = max(1, steps // EVALUATIONS)
    source = [] if row.logits is None else [f"init={_start(row, run, seed, given)}"]
    _python(
        *("train.pretrain", given.config, f"run={run}", f"data={given.data}", f"seed={seed}"),
        *(phases, f"eval_every={every}", f"eval_batches={EVAL_ROWS // row.parts[-1].batch}", "log_every=100"),
        *(f"save_every={max(1, steps // 4)}", *row.settings, *source, *given.settings),
    )
    curve = [line for line in _metrics(run) if line["kind"] == "eval"]
    found = {
        "row": name + changed,
        "seed": seed,
        "asked": asked,
        "tokens": curve[-1]["tokens"],
        "cpu_seconds": round(curve[-1]["cpu_seconds"], 1),
        "loss": _score(run, given.eval_data or given.data, given.length),
        "leaves": next((line["tokens"] / 1e6 for line in curve if line["mlm_loss"] < PLATEAU), None),
        "curve": [(line["tokens"], line["mlm_loss"]) for line in curve],
    }
    if given.blimp:
        limit = () if given.blimp_pairs is None else ("--limit", str(given.blimp_pairs))
        scores = _python("bert_jax", "evaluate-blimp", str(run), given.blimp, "--json", *limit)
        found["blimp"] = json.loads(scores)["accuracy"]
    result.write_text(json.dumps(found) + "\n")
    return found


def _start(row: Row, run: Path, seed: int, given: argparse.Namespace) -> Path:
    """A model with wired heads and `row.logits` times the scale of the LayerNorm before the tied output."""
    folder = run.with_name(f"{run.name}-start")
    if not folder.is_dir():
        drawn = run.with_name(f"{run.name}-drawn")
        shutil.rmtree(drawn, ignore_errors=True)
        model = [setting for setting in given.settings if setting.startswith("model.")]
        _step_of_rate_0(drawn, given.config, given.data, given.length, f"seed={seed}", *START, *model)
        loaded = bert_jax.load(drawn / "export", head="mlm")
        scale = loaded.params["mlm_head"]["LayerNorm"]["scale"]
        loaded.params["mlm_head"]["LayerNorm"]["scale"] = scale * row.logits
        bert_jax.save_pretrained(folder, loaded.config, loaded.params, loaded.tokenizer)
        shutil.rmtree(drawn)
    return folder


def _score(run: Path, data: str, length: int) -> float:
    """The masked-LM loss on the first 3,200 held-out rows of prepared data, in nats."""
    again = run.with_name(f"{run.name}-scored")
    shutil.rmtree(again, ignore_errors=True)
    _step_of_rate_0(again, CONFIG, data, length, f"init={run / 'export'}", "export_at_end=false")
    loss = next(line["mlm_loss"] for line in _metrics(again) if line["kind"] == "eval")
    shutil.rmtree(again)
    return loss


def _step_of_rate_0(run: Path, config: str, data: str, length: int, *settings: str) -> None:
    """A run that evaluates its model as it starts."""
    _python(
        *("train.pretrain", config, f"run={run}", f"data={data}", "packing=no", *settings),
        *(f"phases=(({length},64,1),)", f"eval_batches={EVAL_ROWS // 64}", "optimizer.warmup_steps=0"),
        "optimizer.learning_rate=0",
    )


def _metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def _print_table(results: list[dict]) -> None:
    print(f"\n{describe_cpu()}, one core\n")
    print("| row | seeds | M tokens | CPU s | loss, nats | leaves at M tokens | BLiMP |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in dict.fromkeys(found["row"] for found in results):
        runs = [found for found in results if found["row"] == name]
        left = [found["leaves"] for found in runs]
        print(
            f"| {name} | {len(runs)} | {runs[0]['tokens'] / 1e6:.1f} | {_mean([r['cpu_seconds'] for r in runs], 0)} "
            f"| {_mean([r['loss'] for r in runs], 3)} | {'no' if None in left else _mean(left, 2)} "
            f"| {_mean([r['blimp'] for r in runs if 'blimp' in r], 1)} |"
        )


def _mean(values: list[float], digits: int) -> str:
    """The mean, and its standard error where there are several values."""
    if not values:
        return ""
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
