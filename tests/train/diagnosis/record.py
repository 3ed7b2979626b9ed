"""Makes the runs that test_doctor.py reads: small ones on the prose inside Python's standard library.

    python -m tests.train.diagnosis.record WORK

It trains in WORK and writes the config and the metrics of each run to tests/train/diagnosis/recorded/, without the speeds. It takes
some ten minutes on two cores. A run named after a fault has this fault; the others are healthy.
"""

import json
import sys
from pathlib import Path

from bert_jax.files import read_json_lines
from train import prepare, pretrain
from train.demo import write_corpus

RUNS = Path(__file__).parent / "recorded"
KEPT = (
    "kind", "step", "learning_rate", "mlm_loss", "mlm_accuracy", "unigram_loss", "grad_norm", "nsp_accuracy",
    "majority_accuracy", "skipped_total",
)  # fmt: skip
SMALL = (
    "model.hidden_size=64", "model.intermediate_size=256", "model.dtype=float32", "log_every=10", "eval_every=50",
    "eval_batches=10", "save_every=100000", "export_at_end=false",
)  # fmt: skip
# name -> (data, steps, peak rate, warm-up, and the run that it starts from, if any)
SETTINGS = {
    "pairs": ("pairs", 300, 2e-3, 30),
    "blocks": ("blocks", 1500, 3e-3, 100),
    "warm-up": ("pairs", 100, 5e-4, 100),
    "slow": ("blocks", 400, 5e-4, 40),
    "fast": ("blocks", 600, 0.02, 400),
    "rate-too-high": ("pairs", 300, 0.05, 0),
    "rate-too-high-later": ("blocks", 300, 0.05, 200, "blocks"),
    "rate-too-low": ("pairs", 300, 1e-6, 30),
    "rate-too-low-slightly": ("blocks", 300, 2e-5, 30),
}


def main(work: Path) -> None:
    corpus = work / "stdlib.jsonl"
    if not corpus.exists():
        write_corpus(corpus)
    common = [str(corpus), "--vocab-size", "2000", "--max-seq-length", "64", "--held-out", "0.05"]
    prepare.main([*common, "--output", str(work / "pairs"), "--dupe-factor", "2"])
    prepare.main([*common, "--output", str(work / "blocks"), "--objective", "none", "--rows", "blocks", "--cased"])
    for name, (data, steps, rate, warm_up, *source) in SETTINGS.items():
        run = work / "runs" / name
        total = max(steps, warm_up + 100)
        words = [f"data={work / data}", f"run={run}", f"phases=((64, 32, {total}),)"]
        words += [f"optimizer.learning_rate={rate}", f"optimizer.warmup_steps={warm_up}"]
        words += [f"init={work / 'runs' / other}" for other in source]
        if not run.exists():
            pretrain.main(["configs/demo.py", *words, *SMALL])
        rows = [row for row in read_json_lines(run / "metrics.jsonl") if row["step"] <= steps]
        config = json.loads((run / "config.json").read_text()) | {"data": data}
        config["init"] = source[0] if source else None
        target = RUNS / name
        target.mkdir(parents=True, exist_ok=True)
        (target / "config.json").write_text(json.dumps(config) + "\n")
        (target / "metrics.jsonl").write_text("".join(f"{json.dumps(_short(row))}\n" for row in rows))


def _short(row: dict) -> dict:
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in row.items() if k in KEPT}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
