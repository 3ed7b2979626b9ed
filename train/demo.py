"""`make demo`: from the text inside Python itself to a small BERT that fills masks, in a few minutes on two cores."""

import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bert_jax.errors import UserError
from train.exits import run_program
from train.stdlib_text import write_corpus

RUN = Path("runs/demo")
TEXTS = (
    "Read up to n [MASK] from the file.",
    "This is the base [MASK] for all exceptions.",
    "See the [MASK] for details.",
    "Close the connection to the [MASK].",
)


def main(argv: list[str]) -> int:
    """Corpus, vocabulary, examples, training, and a report on stdout."""
    if argv:
        raise UserError(f"{argv[0]}: the demo takes no arguments; python -m train.pretrain does")
    from train.pretrain import main as pretrain

    started = time.monotonic()
    print("1. text: the documentation inside Python's standard library", file=sys.stderr)
    corpus = RUN / "stdlib.jsonl"
    if not corpus.exists():
        size = write_corpus(corpus)
        print(f"   {size / 1e6:.2f} MB of English prose in {corpus}", file=sys.stderr)
    print("2. vocabulary, examples and training; the same command goes on where it was stopped", file=sys.stderr)
    code = pretrain(["configs/demo.py", f"text={corpus}", f"run={RUN}"])
    if code == 0:
        report(time.monotonic() - started)
    return code


def report(seconds: float) -> None:
    """Prints the held-out figures beside their baselines, a few filled masks, and what to try next."""
    from bert_jax.inference.pipelines import pipeline

    rows = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "eval"][-1]
    out = Console(highlight=False)
    table = Table(title=f"held-out documents after {last['step']:,} steps ({seconds:.0f} s in all)")
    for column in ("", "this model", "baseline", "what the baseline is"):
        table.add_column(column)
    unigram = "how often each token occurs"
    loss, accuracy = f"{last['mlm_loss']:.3f}", f"{last['mlm_accuracy']:.1%}"
    table.add_row("masked LM loss (nats)", loss, f"{last['unigram_loss']:.3f}", unigram)
    table.add_row("masked LM accuracy", accuracy, f"{last['unigram_accuracy']:.1%}", "the most frequent token")
    pairs, majority = f"{last['nsp_accuracy']:.1%}", f"{last['majority_accuracy']:.1%}"
    table.add_row("next sentence accuracy", pairs, majority, "the more frequent answer")
    out.print(table)
    if last["nsp_accuracy"] <= last["majority_accuracy"] + 0.02:
        out.print("Next sentence was not learned in so few steps: it stays near the baseline.")
    for text, answers in zip(TEXTS, pipeline("fill-mask", RUN)(list(TEXTS), top_k=4), strict=True):
        guesses = ", ".join(f"{answer['token_str']} {answer['score']:.0%}" for answer in answers)
        out.print(f"  {text}  ->  {guesses}", markup=False, soft_wrap=True)
    out.print("So small a model, after so few steps, knows which words go together and little of grammar yet.")
    python = os.path.relpath(sys.executable)
    out.print(
        f"\nThe curves: {RUN}/curves.png\n\nTry next:\n"
        f'  {python} -m bert_jax fill-mask {RUN} "The file is opened for [MASK]."\n'
        f"  {python} -m bert_jax info {RUN}\n"
        f"  {python} -m train.pretrain configs/tiny.py text='YOUR/*.txt' run=runs/mine",
        markup=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    run_program(main)
