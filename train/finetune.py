"""The fine-tuning program: from a pretrained model and a task's files to a fine-tuned one, scores and predictions."""

import dataclasses
import json

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load_tokenizer
from bert_jax.formats.source import Source, open_source
from bert_jax.runtime.hosts import in_a_job, is_first, on_first_process, same_everywhere
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.start import adopted_model, check_same_files, check_source, warn_of_truncated, warn_of_unknown
from train.finetuning.tasks.data import TaskData, files_of
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, run_program
from train.run.goodput import Goodput
from train.run.launch import Launch, in_run_directory, record_start, start

USAGE = """
Fine-tunes a pretrained BERT on a task, and scores it as the task's official script does.

    python -m train.finetune CONFIG.py init=SOURCE task=TASK data=DIR [FIELD=VALUE ...] [--dry-run] [--json] [--fields]

    python -m train.finetune configs/finetune.py init=google-bert/bert-base-uncased task=mrpc data=glue/MRPC
    python -m train.finetune configs/finetune.py init=runs/demo train=mails.csv dev=0.1 text=body label=folder
    python -m train.finetune configs/finetune_squad.py init=DIR data=squad

Arguments:
    init=SOURCE            a run directory, a folder or a published model
    task=TASK              classify (your own table: text=, pair=, label= name its columns), tag (columns of words and
                           tags of entities), pos (columns of words and labels, or CoNLL-U), cola sst2 mrpc stsb qqp
                           mnli qnli rte wnli, snli, squad1 squad2, swag codah arc hellaswag, wnut17, korquad nsmc
                           korsts kornli klue-ner naver-ner
    data=DIR               the task's own files; or train=FILE dev=FILE test=FILE;  dev=0.1 holds out a tenth of train
    run=runs/NAME          the run directory (default: config, task and date); the same command resumes it
    allow_change=a,b       resume even though these fields of the config have changed; data: also the contents of files
    FIELD=VALUE            any field of the config, such as optimizer.learning_rate=2e-5, epochs=4 or freeze=embeddings
    seeds=8                train 8 models with different seeds in one program;  learning_rates='(2e-5,5e-5)': 8 for each
    track=wandb|mlflow     also send the metrics to Weights & Biases or MLflow
    --fields               list all fields, with their values in this config, types and meanings
    --dry-run              read the data, time a step, print what would be trained and how long it takes, stop
    --json                 print the result of the run as one JSON object on stdout

The run directory gets the best model by the task's metric in export/, report/, and predictions/ in the benchmark's
format and with text, gold, label and probability (python -m bert_jax score RUN reads these back).
On several hosts, start the same command on all (python -m train.pretrain --help says how they find each other).
Exit codes: 0 done; 2 a mistake in the input; 3 the loss or the gradients stayed non-finite; 74 too many saves failed;
75 stopped by SIGTERM after saving, or another host was lost; 76 the run hung; 130 stopped by Ctrl-C after saving;
1 a bug.
"""


def main(argv: list[str]) -> int:
    launch = start(argv, USAGE, FinetuneConfig)
    if not launch.dry_run:
        return in_run_directory(launch, finetune_in)
    from bert_jax.shown import duration
    from train.finetuning.cost import run_seconds
    from train.finetuning.job import FinetuningJob

    run = RunDirectory(launch.run)
    config, task, tokenizer, source = prepared(run, launch)
    job = FinetuningJob(config, run, task, tokenizer, source)
    facts = job.plan()
    if config.is_sweep:
        from train.finetuning.sweep import SweepJob, rates_of

        runs = SweepJob(job, run, task, tokenizer).runs  # which refuses what the run would refuse
        facts |= {"runs": len(runs), "learning_rates": rates_of(runs)}
    seconds = run_seconds(job, task)
    facts |= {"seconds": seconds} if launch.as_json else {"time": f"about {duration(seconds)} on this machine"}
    if is_first():
        print(json.dumps(facts) if launch.as_json else "\n".join(f"{name}: {value}" for name, value in facts.items()))
    return EXIT_DONE


def finetune_in(run: RunDirectory, launch: Launch, goodput: Goodput) -> int:
    """Reads the task, checks the config against the run's saved one, and trains in `run`."""
    from train.finetuning.job import FinetuningJob
    from train.run.loop import train

    config, task, tokenizer, source = prepared(run, launch)
    job = FinetuningJob(config, run, task, tokenizer, source)
    if config.is_sweep:
        from train.finetuning.sweep import SweepJob

        job = SweepJob(job, run, task, tokenizer)
    record_start(run, launch, config, tokenizer, source)
    return train(job, run, goodput)


def prepared(run: RunDirectory, launch: Launch) -> tuple[FinetuneConfig, TaskData, Tokenizer, Source | None]:
    """Returns the config, completed with what follows from source and data; the task; the tokenizer; and the source.

    The source is the opened `init=`; None for a resumed run, which has its own config and tokenizer.

    Raises:
        FileNotFoundError, UserError: a file, the source or a field is not as it should be; the files differ from those
            that the run began with, or between the processes of the job.
    """
    from train.finetuning.tasks.table import open_task

    config: FinetuneConfig = launch.config
    if config.init is None:
        raise UserError("init: not given; say init=DIR or init=ORG/NAME, the model to fine-tune")
    if follows := launch.given & {"optimizer.total_steps", "optimizer.warmup_steps", "optimizer.warmup_share"}:
        raise UserError(f"{min(follows)}: is computed from the data; set epochs=, or warmup= as a share of the steps")
    saved = on_first_process(run.config_to_resume)
    source = None if saved else open_source(config.init)
    if source is not None:
        check_source(source)
        tokenizer = load_tokenizer(source)
    else:
        with run.on_disk() as folder:
            tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise UserError(f"init: {config.init} has no tokenizer, which fine-tuning needs to encode its texts")
    task = open_task(config, tokenizer)
    if in_a_job():  # whose processes read the files by themselves, and from other rows would make other batches
        sums = {"tokenizer": tokenizer.fingerprint} | {name: file.digest for name, file in files_of(task).items()}
        same_everywhere({f"sha256 of {name}": digits[:12] for name, digits in sums.items()})
    origin = BertConfig.from_json(saved["model"]) if source is None else source.config
    if source is not None:
        warn_of_unknown(config, task, tokenizer)
    else:
        labels = tuple(label.strip() for label in origin.labels)  # as they are read now
        if saved.get("task") == config.task and labels != task.labels:
            raise UserError(
                f"{run.path}: this run was started with the labels {', '.join(origin.labels)}, and its data now has "
                f"{', '.join(task.labels)}; choose another run="
            )
        check_same_files(config, task, on_first_process(run.facts_to_resume), launch.allow_change)
    model = adopted_model(config, launch.given, task.labels, task.problem_type, origin)
    warn_of_truncated(config, task, model.longest_input)
    return dataclasses.replace(config, model=model).for_examples(len(task.train)), task, tokenizer, source


if __name__ == "__main__":
    run_program(main)
