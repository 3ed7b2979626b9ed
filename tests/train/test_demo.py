"""`make demo` from its text to its report, on a few documents and for a few steps."""

import os
import re
import signal
from itertools import islice
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.run_directory import records
from train import demo
from train.pretrain import main as pretrain
from train.pretraining.job import PretrainingJob
from train.run.ending.stopping import EXIT_DONE, EXIT_INTERRUPTED, exit_code

SMALLER = (
    "phases=((64,4,3),)",
    "text_options.vocab_size=700",
    "text_options.held_out=0.2",
    "optimizer.warmup_steps=1",
    "eval_batches=1",
    "eval_every=1",
    "save_every=1",
)


@pytest.mark.slow
def test_the_demo_trains_reports_and_goes_on_where_it_stopped(tmp_path: Path, monkeypatch, capsys):
    documents = list(islice(demo.documents(), 40))  # the topics: no module has to be read
    monkeypatch.setattr(demo, "documents", lambda: iter(documents))
    monkeypatch.setattr(demo, "pretrain", lambda words: pretrain([*words, *SMALLER]))
    monkeypatch.chdir(tmp_path)
    evaluate = PretrainingJob.evaluate

    def interrupted(self, state, step, log):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, state, step, log)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingJob, "evaluate", interrupted)
        assert exit_code(demo.main, []) == EXIT_INTERRUPTED
    assert "held-out documents" not in capsys.readouterr().out
    corpus = (tmp_path / demo.RUN / "stdlib.jsonl").read_bytes()
    assert exit_code(demo.main, []) == EXIT_DONE
    assert (tmp_path / demo.RUN / "stdlib.jsonl").read_bytes() == corpus
    assert [row["step"] for row in records(tmp_path / demo.RUN, "eval")] == [1, 2, 3]
    said = capsys.readouterr().out
    assert "held-out documents after 3 steps" in said
    for label in ("masked LM loss (nats)", "masked LM accuracy", "next sentence accuracy"):
        assert label in said
    for text in demo.TEXTS:
        assert f"  {text}  ->  " in said
    (config,) = re.findall(r"configs/\w+\.py", said)
    assert (ROOT / config).is_file()
