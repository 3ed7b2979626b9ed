"""The pretraining program: from a config file and `key=value` words to a finished run directory.

With `--dry-run` it only prints what the run would cost: time, passes over the text, tokens, memory and disk.
"""

import dataclasses
import json
from typing import TYPE_CHECKING

from rich.console import Console

from bert_jax.data.pretraining.manifest import MANIFEST
from bert_jax.errors import UserError
from bert_jax.formats.source import Source
from bert_jax.runtime.hosts import is_first, on_first_process
from train.planning.devices import make_ready
from train.planning.machines import Topology, take_topologies
from train.pretraining.cost import facts_of_text, run_facts
from train.pretraining.cost_report import print_facts, print_lines, text_lines
from train.pretraining.first_rows import check_same_place, with_first_rows
from train.pretraining.fitted_model import check_same_data, check_vocabulary, open_init, with_model_for
from train.pretraining.mixture import DataSource, check_batches, open_data, prepared_in
from train.pretraining.packing import continued_config, with_packing
from train.pretraining.recipe import PretrainConfig
from train.pretraining.sweep.members import take_sweep
from train.pretraining.sweep.sweep import RECORD, sweep
from train.pretraining.text import SampledText, is_from_text, prepare_text, sampled_text
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, run_program
from train.run.goodput import Goodput
from train.run.launch import Launch, in_run_directory, parse, record_start, start

if TYPE_CHECKING:
    from train.pretraining.job import PretrainingJob

USAGE = """
Pretrains a BERT: masked language model and sentence pairs, sharded over all devices; resumed runs are bit-identical.

    python -m train.pretrain CONFIG.py [FIELD=VALUE ...] [--dry-run] [--json] [--fields]

    python -m train.pretrain configs/tiny.py text='books/*.txt'            raw text, prepared first
    python -m train.pretrain configs/bert_base.py data=DIR run=runs/NAME   data made by python -m train.prepare
    python -m train.pretrain configs/bert_base.py data=random --dry-run    what it would cost; trains nothing

Arguments:
    run=runs/NAME          the run directory (default: the config's name and the date); the same command resumes it
    data=DIR | text=GLOB   the training data;  eval_data=DIR  evaluate on the training examples of DIR, which data=
                           must not have, and not on the held-out part of data=
                           data=wiki:0.7,books:0.3  several directories, in these shares;  data=gs://BUCKET/DIR
    init=SOURCE            start from a run directory, a folder or a published model (google-bert/bert-base-uncased),
                           with its architecture;  init_optimizer=true  also with its optimizer's moments;
                           init_step=true  also at its step;  init_at=STEP  those of that checkpoint;
                           init_data=true  continue after the rows that it used
    teacher=SOURCE         also distil from such a model (DistilBERT);  distillation.FIELD=value  weights of the losses
    sweep='F=A,B;G=C,D'    train a member for each combination of values of these fields, one after the other
    halving=2              of a sweep: at 1/2, 1/4 ... of the steps only the better half goes on;  halving=3@0.1,0.3
                           says the shares
    sweep_in=together      of a sweep: all members in one program; turn: one after the other (default); auto
    merge=average          of such a sweep: export the average of the members' weights too
    stop_after=50m         land the decay of optimizer.schedule=stable within this time
    blimp=DIR              score BLiMP's minimal pairs while training; probe=, finetune=: other scores (--fields)
    allow_change=a,b       resume even though these fields of the config have changed
    FIELD=VALUE            any field of the config, such as optimizer.learning_rate=2e-4 or phases='((128,256,10000),)'
    --fields               list all fields, with their values in this config, types and meanings
    --dry-run              print what the run would cost (time, passes over the text, memory, disk) and stop: it times
                           a few steps, and of text= prepares a sample; run it on the machine that will train, or
                           name that: --topology=v5e:4x4 (or several) compiles for TPUs, see python -m train.plan
    --json                 print one JSON object on stdout: the dry run's figures, or the result of the run

On several hosts, start the same command on all; TPU VMs, GKE, Slurm and Open MPI are recognised. Elsewhere say
--coordinator-address=HOST:PORT --num-processes=N --process-id=I, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID. --join-seconds=300 is how long to wait for the others, --heartbeat-seconds=60 for a silent one.
Exit codes: 0 done; 2 a mistake in the input; 3 the loss or the gradients stayed non-finite; 5 hopeless (see
hopeless_after); 74 too many saves failed; 75 stopped by SIGTERM after saving, or another host was lost; 76 the run
hung; 130 stopped by Ctrl-C after saving; 1 a bug.
"""


def main(argv: list[str]) -> int:
    words, argv = take_sweep(argv)
    if words is not None:
        return sweep(words, argv, USAGE, pretrain_in, job_of)
    topologies, argv = take_topologies(argv)
    if topologies:
        return planned(topologies, argv)
    launch = start(argv, USAGE, PretrainConfig)
    if launch.dry_run:
        source = open_init(launch.config)
        if is_from_text(launch.config, launch.given):
            with sampled_text(launch.config, launch.given, source, RunDirectory(launch.run)) as data:
                return dry_run(launch, data, source)
        return dry_run(launch, open_data(launch.config), source)
    if RunDirectory(launch.run).path.joinpath(RECORD).exists():
        raise UserError(f"run: {launch.run} has a sweep in it; say its sweep= too, or choose another run=")
    return in_run_directory(launch, pretrain_in)


def pretrain_in(run: RunDirectory, launch: Launch, goodput: Goodput, *, pause_at: int | None = None) -> int:
    """Prepares the text if `text=` is given, checks config and vocabulary, and trains in `run`.

    `pause_at`: an evaluation's step, at which it saves and returns PAUSED.
    """
    from train.run.loop import train

    return train(job_of(run, launch, goodput, run, pause_at=pause_at), run, goodput)


def job_of(
    run: RunDirectory, launch: Launch, goodput: Goodput, saves: RunDirectory, *, pause_at: int | None = None
) -> "PretrainingJob":
    """The job of `run`, whose start is recorded there; the checkpoints that it resumes from are in `saves`."""
    from train.pretraining.job import PretrainingJob
    from train.pretraining.objective import check_same_teacher, open_teacher
    from train.pretraining.scoring.scoring import read_scoring

    config, saved = launch.config, on_first_process(run.config_to_resume if saves is run else run.saved_config)
    facts = on_first_process(saves.facts_to_resume)
    if saves is not run and not facts:
        saved = None  # of a start that saved nothing
    # Before the text is prepared, which can take hours.
    source, scoring, held_out = None if saved else open_init(config), read_scoring(config), open_held_out(config)
    teacher = None if config.teacher is None else open_teacher(config.teacher)
    if is_from_text(config, launch.given):
        with goodput.stages("prepare"):
            config = dataclasses.replace(config, data=prepare_text(run, config, launch.given, source))
    data = open_data(config)
    if saved:
        check_same_data(config, data, facts, launch.allow_change)
    config = with_model_for(config, data, launch.given, source, saved)
    config = with_packing(config, data, saved or continued_config(config, source))
    config = with_first_rows(config, data, source, saved)
    if saved and launch.allow_change:
        check_same_place(config, data, facts)
    if source is not None:
        check_vocabulary(source, data)
    config = dataclasses.replace(config, optimizer=config.optimizer.settled())
    scoring = scoring.with_tokenizer_of(data, config)
    if held_out is not None:
        check_held_out(held_out, config, data)
    check_batches(config, data, held_out or data)
    record_start(run, launch, config, data.tokenizer, source, teacher)
    job = PretrainingJob(config, run, data, held_out or data, source, scoring, pause_at)
    if saved:
        check_same_teacher(config, job.teacher_digest, facts, launch.allow_change)
    return job


def planned(topologies: list[Topology], argv: list[str]) -> int:
    """A dry run for machines that one does not have: their plans, and what the text and the disk make of the run."""
    launch = parse(argv, USAGE, PretrainConfig)
    if not launch.dry_run:
        raise UserError("--topology: says for which machine a dry run is meant; say --dry-run, too")
    make_ready(topologies)
    source = open_init(launch.config)
    if is_from_text(launch.config, launch.given):
        with sampled_text(launch.config, launch.given, source, RunDirectory(launch.run)) as data:
            return _print_planned(topologies, launch, data, source)
    return _print_planned(topologies, launch, open_data(launch.config), source)


def _print_planned(topologies: list[Topology], launch: Launch, data: DataSource, source: Source | None) -> int:
    from train.planning.run_plan import plans_on

    config = with_model_for(launch.config, data, launch.given, source)
    if source is not None:
        check_vocabulary(source, data)
    out = Console(stderr=launch.as_json, highlight=False)
    plans = plans_on(topologies, config, data, None, out)
    config = with_packing(config, data, devices=topologies[0].devices)
    facts = facts_of_text(config, data, launch.run, plans[0]["state_bytes"], plans[0]["parameters"])
    print_lines(text_lines(facts), out)
    if launch.as_json:
        print(json.dumps({"plans": plans, **facts}))
    return EXIT_DONE


def open_held_out(config: PretrainConfig) -> DataSource | None:
    """The data of `eval_data=`, or None without it."""
    if config.eval_data is None:
        return None
    of_eval_data = dataclasses.replace(config, data=config.eval_data, data_shares=(), data_temperature=1.0)
    return open_data(of_eval_data, evaluation_split="train")  # all of it is held out from this run


def check_held_out(held_out: DataSource, config: PretrainConfig, data: DataSource) -> None:
    """Checks that a run on `data` can be scored on `held_out`.

    Args:
        held_out: the data of `eval_data=`.
        config: of the run, with the model that it trains.
        data: what it trains on; of a sample of `text=` the vocabulary is not compared, because it is the sample's own.

    Raises:
        UserError: it is among the data to train on, by the sums of the manifests; has another vocabulary or objective;
            or rows that the model cannot take.
    """
    trained = {one.digest: one.directory.name for one in prepared_in(data)}
    if same := next((one for one in prepared_in(held_out) if one.digest in trained), None):
        raise UserError(
            f"eval_data: {same.directory.name} is the data of data={trained[same.digest]} (their {MANIFEST} has the "
            "same sum), so the model would be scored on what it learns; name other data, or leave eval_data out to "
            "evaluate on the part of data= that was held out"
        )
    if held_out.fingerprint != data.fingerprint and config.data == "random":
        raise UserError(f"eval_data: data=random has no vocabulary, which {config.eval_data} would need; leave it out")
    if held_out.fingerprint != data.fingerprint and not isinstance(data, SampledText):
        raise UserError(
            f"eval_data: {config.eval_data} was prepared with another vocabulary than {config.data or config.text}; "
            f"prepare the text of {config.eval_data} with that one: --vocab DIR, the directory that the run trains on"
        )
    if held_out.objective != data.objective:
        raise UserError(
            f"eval_data: {config.eval_data} was prepared with the objective {held_out.objective}, and "
            f"{config.data or config.text} with {data.objective}; prepare the text of {config.eval_data} with "
            f"--objective {data.objective}"
        )
    if held_out.has_second and (types := config.model.type_vocab_size) < 2:
        raise UserError(
            f"eval_data: rows of {config.eval_data} have a sentence twice, which needs a model with 2 token types, and "
            f"this one has {types}; prepare the text of {config.eval_data} without --twice"
        )


def dry_run(launch: Launch, data: DataSource, source: Source | None) -> int:
    """Prints what the run would cost, having compiled and timed a step of each phase; writes nothing.

    With --json the figures go to stdout as one JSON object, and what people read to stderr.
    """
    from train.pretraining.scoring.scoring import read_scoring

    config = with_packing(with_model_for(launch.config, data, launch.given, source), data)
    if source is not None:
        check_vocabulary(source, data)
    read_scoring(config).with_tokenizer_of(data, config)
    held_out = open_held_out(config)
    if held_out is not None:
        check_held_out(held_out, config, data)
    check_batches(config, data, held_out or data)
    facts = run_facts(config, data, launch.run)
    if is_first():
        print_facts(facts, Console(stderr=launch.as_json, highlight=False))
        if launch.as_json:
            print(json.dumps(facts))
    return EXIT_DONE


if __name__ == "__main__":
    run_program(main)
