"""Names what is wrong with a pretraining run, from its config, its metrics and its data; it changes nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console

from bert_jax.cli.program import in_own_words
from bert_jax.data.pretraining.manifest import MANIFEST
from bert_jax.errors import UserError
from train.diagnosis.data_rules import find_in_data
from train.diagnosis.evidence import DataEvidence, Evidence, Finding
from train.diagnosis.metric_rules import STEPS_AFTER_WARM_UP, find_in_metrics
from train.run.ending.stopping import EXIT_DONE, EXIT_USER_ERROR, keeps_nothing, run_program

USAGE = """
Names what is wrong with a run and what to do about it, from its config, metrics and data; it changes nothing.

    python -m train.doctor RUN [--json]

RUN is the directory of a pretraining run, finished or still running. --json prints one JSON object on stdout.
docs/pretraining.md lists the rules with their thresholds.

Exit codes: 0 nothing found; 4 something found; 2 a mistake in the input; 1 a bug.
"""
EXIT_FOUND = 4


def examine(run: Evidence) -> tuple[list[Finding], list[str]]:
    """The findings on a run, and notes on what could not be checked."""
    notes, found, unigram = [], [], None
    if not run.is_pretraining:
        notes.append("not a pretraining run: only non-finite steps were looked for")
    elif run.config.get("data") == "random":
        notes.append("data=random: there is nothing to learn")
    else:
        several = len(run.data_paths) > 1
        for path in run.data_paths:
            if not (path / MANIFEST).exists():
                checked = "it was not checked" if several else "only the metrics were checked"
                notes.append(f"its data {path} is not here: {checked}")
                continue
            data, phases = DataEvidence(path), run.config["phases"]
            if several:  # one may have no share of a phase, and then need not have its length
                phases = [phase for phase in phases if str(phase[0]) in data.manifest["splits"]["train"]["examples"]]
            here = find_in_data(data, run.config.get("masking"), phases)
            if several:
                here = [replace(finding, seen=f"{path}: {finding.seen}") for finding in here]
            else:
                unigram = data.train.get("unigram_entropy")
            found += here
            if not data.report:
                notes.append(f"{data.path} has no report: its text was not checked")
    if not run.train:
        notes.append("no training metrics yet")
    elif run.is_pretraining and run.step < run.warm_up + STEPS_AFTER_WARM_UP:
        notes.append(f"too early to say whether the rate is too low: step {run.step:,}, warm-up to {run.warm_up:,}")
    if unigram is None:
        unigram = next((row["unigram_loss"] for row in run.evaluations if row.get("unigram_loss")), None)
    return found + find_in_metrics(run, unigram), notes


@keeps_nothing
def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code, raises UserError for the user's mistakes."""
    words = [word for word in argv if word != "--json"]
    if not words or {"-h", "--help"} & set(words):
        print(in_own_words(USAGE.strip()))
        return EXIT_DONE if words else EXIT_USER_ERROR
    if len(words) > 1 or words[0].startswith("-"):
        raise UserError(f"{words[-1]}: expected RUN [--json], one run directory")
    run = Evidence(words[0])
    found, notes = examine(run)
    if len(words) < len(argv):
        result = {"run": str(run.path), "step": run.step, "findings": [asdict(f) for f in found], "notes": notes}
        print(json.dumps(result, ensure_ascii=False))
    else:
        _print(run, found, notes)
    return EXIT_FOUND if found else EXIT_DONE


def _print(run: Evidence, found: list[Finding], notes: list[str]) -> None:
    out = Console(highlight=False)

    def say(line: str, style: str | None = None) -> None:
        out.print(line, style=style, markup=False, soft_wrap=True)

    for finding in found:
        say(f"{finding.rule}: {finding.seen}", "yellow")
        say(f"  {finding.means}")
        say(f"  -> {finding.do}\n")
    for note in notes:
        say(f"note: {note}")
    say(f"{run.path}: step {run.step:,}, " + (f"{len(found)} found" if found else "nothing wrong found"))


if __name__ == "__main__":
    run_program(main)
