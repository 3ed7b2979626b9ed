"""Fine-tuning a classifier with transformers' Trainer, a whole program, as its users run it or at its best setting.

    python -m benchmarks.rivals.trainer_finetune FOLDER {users,float32,bfloat16}

`users`: the library's defaults: float32, a random order, each batch padded to its longest row. The others train on the
same examples in each batch as bert_jax (of similar lengths; padded to the longest) and evaluate in the order of length:
float32, or bfloat16 by autocast (`bf16=True`).

FOLDER: settings.json of benchmarks/finetune_time.py. Writes FOLDER/result.json: the scores, and wall and CPU seconds of
each part.
"""

import csv
import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Parts:
    """Wall and CPU seconds by part. The first begins with the process."""

    def __init__(self):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5), field 22: in clock ticks after boot
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
        self.seconds: dict[str, list[float]] = {}
        self._name, self._since = "start", (time.perf_counter() - age, 0.0)

    def go_on_with(self, name: str) -> str:
        """From now on the part is `name`; returns the one before."""
        now, before = (time.perf_counter(), time.process_time()), self._name
        so_far = self.seconds.setdefault(before, [0.0, 0.0])
        self.seconds[before] = [had + new - old for had, new, old in zip(so_far, now, self._since, strict=True)]
        self._name, self._since = name, now
        return before


PARTS = Parts()

import numpy as np  # noqa: E402
import transformers  # noqa: E402
from sklearn.metrics import accuracy_score, f1_score  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from bert_jax.data.tasks.length_batches import LengthBatches  # noqa: E402


def read(path: str, settings: dict[str, Any]) -> tuple[list[list[str]], list[int]]:
    """The texts of each example, and its label."""
    file = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
    with file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    texts = [[row[column] for column in settings["text"]] for row in rows]
    return texts, [settings["labels"].index(row[settings["label"]]) for row in rows]


def encode(tokenizer: Any, path: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    texts, labels = read(path, settings)
    columns = [list(column) for column in zip(*texts, strict=True)]
    rows = tokenizer(*columns, truncation=True, max_length=settings["max_length"])
    return [{name: rows[name][number] for name in rows} | {"labels": label} for number, label in enumerate(labels)]


class SameBatches:
    """The numbers of the examples in each of bert_jax's batches, epoch after epoch, for torch's DataLoader."""

    def __init__(self, lengths: np.ndarray, batch: int, max_length: int, seed: int):
        self._batches = LengthBatches(lengths, batch, padded=(max_length,), seed=seed)
        self._begin = 0

    def __len__(self) -> int:
        return self._batches.steps_per_epoch

    def __iter__(self):
        for number in range(self._begin, self._begin + len(self)):
            batch = self._batches.batch(number)
            yield batch.examples[batch.counts].tolist()
        self._begin += len(self)


class Timed(transformers.Trainer):
    """The Trainer, which says what it does now, and takes its batches from `batches` if there are any."""

    batches: SameBatches | None = None

    def get_train_dataloader(self) -> DataLoader:
        if self.batches is None:
            return super().get_train_dataloader()
        loader = DataLoader(self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator)  # type: ignore[arg-type]
        return self.accelerator.prepare(loader)

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        before = PARTS.go_on_with("evaluation")
        found = super().evaluation_loop(*arguments, **options)
        PARTS.go_on_with(before)
        return found

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        before = PARTS.go_on_with("saving")
        super()._save_checkpoint(*arguments, **options)
        PARTS.go_on_with(before)


def scores_of(prediction: transformers.EvalPrediction) -> dict[str, float]:
    found, gold = prediction.predictions.argmax(-1), prediction.label_ids
    return {"accuracy": float(accuracy_score(gold, found)), "f1": float(f1_score(gold, found))}


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    settings = json.loads((folder / "settings.json").read_text())
    users = mode == "users"
    PARTS.go_on_with("prepare")
    transformers.logging.set_verbosity_error()
    transformers.set_seed(settings["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["init"])
    train, dev = (encode(tokenizer, settings[name], settings) for name in ("train", "dev"))
    if not users:
        dev.sort(key=lambda row: len(row["input_ids"]))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        settings["init"], num_labels=len(settings["labels"])
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        per_device_train_batch_size=settings["batch"],
        per_device_eval_batch_size=settings["batch"],
        num_train_epochs=settings["epochs"],
        learning_rate=settings["rate"],
        weight_decay=0.01,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=settings["metric"],
        logging_steps=20,
        seed=settings["seed"],
        use_cpu=True,
        bf16=mode == "bfloat16",
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Timed(
        model,
        arguments,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=train,  # type: ignore[arg-type]
        eval_dataset=dev,  # type: ignore[arg-type]
        processing_class=tokenizer,
        compute_metrics=scores_of,
    )
    if not users:
        lengths = np.array([len(row["input_ids"]) for row in train])
        trainer.batches = SameBatches(lengths, settings["batch"], settings["max_length"], settings["seed"])
    PARTS.go_on_with("training")
    trainer.train()
    PARTS.go_on_with("saving")
    trainer.save_model(str(folder / "export"))
    predicted = trainer.predict(dev)  # type: ignore[arg-type]
    predictions = {"logits": np.asarray(predicted.predictions).tolist()}
    (folder / "predictions.json").write_text(json.dumps(predictions))
    PARTS.go_on_with("")
    scores = {name: predicted.metrics[f"test_{name}"] for name in ("accuracy", "f1")}
    result = {"scores": scores, "steps": trainer.state.global_step, "parts": PARTS.seconds}
    (folder / "result.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
