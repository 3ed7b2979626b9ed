"""What the messages of the training programs advise is accepted by the program that printed them."""

import json
from importlib import import_module

import pytest

from tests.advice import corrected, filled, not_run
from tests.inference.tasks.task_folders import export
from tests.root import ROOT
from tests.train.finetuning.finetune_sources import write_csv, write_squad
from train.run.directory import RunDirectory
from train.run.ending.stopping import exit_code

TINY = "configs/tiny.py data=random init={pretraining} log_every=1 eval_every=9 eval_batches=1"
SHORT = "phases=((16,4,2),) optimizer.warmup_steps=0"
SMALL = f"configs/tiny.py {SHORT} model.hidden_size=32 model.num_hidden_layers=1 model.num_attention_heads=2"
TABLE = "configs/finetune.py init={sequence} train={tmp}/table.csv text=body epochs=1 batch=2 max_length=16"
SQUAD = "configs/finetune_squad.py init={question} epochs=1 max_length=32 stride=8 batch=8"
TEXTS = "{{tmp}}/texts.txt --output {{tmp}}/prepared-{} --vocab-size 40 --workers 1"


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("advice")
    (folder / "table.csv").write_text("body,other,label\n" + "hello,o,x\nheld,o,y\n" * 4)
    (folder / "numbers.csv").write_text("body,label\n" + "hello,1\nheld,2\n" * 4)
    (folder / "texts.txt").write_text("hello\nheld\n")
    (folder / "words.tsv").write_text("hello\tX\nheld\tY\n\n" * 4)
    (folder / "treebanks").mkdir()
    for name in ("en_ewt", "fr_gsd"):
        (folder / "treebanks" / f"{name}-ud-train.tsv").touch()
    for name in ("rows.json", "rows.jsonl"):
        (folder / name).write_text('{"text": "hello"}\n{"text": "held"}\n')
    (folder / "words.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nHello\n")
    (folder / "old.png").write_text("mine")
    for run in ("seen", "tuned"):
        (folder / run).mkdir()
    (folder / "seen" / "config.json").write_text('{"phases": [[16, 2, 4]]}')
    (folder / "tuned" / "config.json").write_text('{"task": "classify"}')
    rows = ({"kind": "train", "step": step, "mlm_loss": 3.0, "mlm_accuracy": 0.1} for step in (1, 2))
    (folder / "seen" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_squad(folder / "squad.json", 8, 0)
    write_squad(folder / "squad2.json", 8, 0, impossible=True)
    choices = [("the film", "was", "good", "bad", "poor", "awful", 0)] * 8
    header = ("sent1", "sent2", *(f"ending{number}" for number in range(4)), "label")
    write_csv(folder / "choices.csv", choices, header)
    heads = ("pretraining", "sequence-classification", "question-answering", "multiple-choice")
    return {"tmp": str(folder)} | {name.split("-")[0]: str(export(folder / name, name)) for name in heads}


@pytest.fixture(scope="module")
def trained(places) -> str:
    """A finished pretraining run of two steps."""
    run = f"{places['tmp']}/trained"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert exit_code(import_module("train.pretrain").main, [*filled(f"{TINY} {SHORT}", places), f"run={run}"]) == 0
    return run


OF_PROGRAMS = [
    # the program, what is typed, part of the message, the words that it advises
    ("pretrain", "--fields", "name the config whose fields to list", "configs/tiny.py"),
    ("pretrain", "configs/tiny.py", "say data=DIR", "data=random --fields"),
    ("pretrain", f"{TINY} {SHORT} packing=yes", "leave packing out", "!packing --fields"),
    ("pretrain", f"{TINY} {SHORT} --topology cpu:1", "say --dry-run, too", "--dry-run"),
    ("plan", SMALL, "say --topology v5e:4x4", "--topology cpu:1"),
    ("pretrain", "configs/tiny.py model=3", "set its fields one by one", "!model model.hidden_size=64 --fields"),
    ("pretrain", "configs/tiny.py optimizer.learning_rte=1", "did you mean optimizer.learning_rate", "!optimizer optimizer.learning_rate=1 --fields"),
    ("pretrain", "configs/tiny.py data=random phases=((9999,8,2000),)", "lower the length", "!phases phases=((64,8,2000),) --fields"),
    ("pretrain", "configs/tiny.py data=random accumulation=7", "expected a divisor", "!accumulation accumulation=8 --fields"),
    ("pretrain", "configs/tiny.py distillation.alpha_cos=2", "say teacher=SOURCE", "teacher=x --fields"),
    ("pretrain", f"{TINY} {SHORT} teacher={{pretraining}}", "text_options.objective=none", "!data !teacher text={tmp}/table.csv text_options.objective=none text_options.vocab={pretraining} --fields"),
    ("pretrain", f"{TINY} {SHORT} init_step=true", "say init=RUN init_optimizer=true", "!init= init={trained} init_optimizer=true !phases phases=((16,4,3),)"),
    ("pretrain", f"{TINY} {SHORT} !init= init_data=true", "say init=RUN with it", "init={trained}"),
    ("pretrain", f"{TINY} !init init={{trained}} init_step=true init_optimizer=true init_data=true optimizer.warmup_steps=0 phases=((16,4,3),)", "leave one of the two out", "!init_data"),
    ("pretrain", f"{TINY} {SHORT} !init init={{trained}} init_optimizer=true optimizer.name=adamw", "leave init_optimizer out", "!init_optimizer"),
    ("pretrain", f"{TINY} {SHORT} !init init={{trained}} init_data=true seed=1", "leave init_data out", "!init_data"),
    ("pretrain", f"{TINY} {SHORT} !init init={{trained}} init_step=true init_optimizer=true", "give the last phase more steps", "!phases phases=((16,4,3),)"),
    ("pretrain", f"{TINY} optimizer.warmup_steps=0 phases=((64,4,2),)", "as in phases=", "!phases phases=((34,4,2),)"),
    ("pretrain", f"{TINY} {SHORT} model.hidden_size=16", "leave it out", "!model.hidden_size"),
    ("pretrain", f"{TINY} {SHORT} optimizer.learning_rate=1e-3 run={{trained}}", "say allow_change=optimizer.learning_rate", "allow_change=optimizer.learning_rate"),
    ("pretrain", f"{TINY} {SHORT} run={{tmp}}/tuned", "choose another run=", "!run= run={tmp}/another"),
    ("pretrain", f"{TINY} {SHORT} start.range=width", "leave init= out, or say", "start.range=model"),
    ("pretrain", "configs/tiny.py model.model_type=albert", "say start.positions=random", "start.positions=random start.heads=() --fields"),
    ("pretrain", "configs/tiny.py start.positions=random", "say start.positions=fourier", "!start.positions start.positions=fourier --fields"),
    ("pretrain", f"{SMALL} data=random start.output_bias=unigram", "say zeros", "start.output_bias=zeros"),
    ("pretrain", f"{SMALL} data=random halving=2", "say sweep='FIELD=VALUE,VALUE' too", "sweep=optimizer.learning_rate=1e-3,2e-3 eval_every=1 eval_batches=1"),
    ("pretrain", f"{SMALL} data=random sweep=seed=0,1 eval_every=1 eval_batches=1 halving=2 stop_after=1h optimizer.schedule=stable optimizer.warmup_steps=0", "leave one of the two out", "!halving"),
    ("pretrain", f"{SMALL} data=random sweep=seed=0,1 --dry-run", "leave sweep= out", "!sweep"),
    ("pretrain", f"{SMALL} data=random run={{tmp}}/pairs blimp={{tmp}}", "leave blimp= out", "!blimp --dry-run"),
    ("pretrain", f"{SMALL} data=random run={{tmp}}/probed probe=sst2:{{tmp}}", "leave probe= out", "!probe --dry-run"),
    ("pretrain", f"{SMALL} data=random run={{tmp}}/copied finetune=sst2:{{tmp}}", "leave finetune= out", "!finetune --dry-run"),
    ("pretrain", f"{SMALL} data=random stop_after=1h --dry-run", "the steps of the run follow from its time", "optimizer.schedule=stable"),
    ("pretrain", "configs/hour.py data=random stop_after=1h", "say optimizer.warmup_steps=100", "optimizer.warmup_steps=100 --fields"),
    ("pretrain", "configs/night.py data=random stop_after=1h optimizer.average_tail=0.5", "of a run begin is not known before its decay does", "optimizer.average_tail=0.4 --fields"),
    ("pretrain", f"{SMALL} !phases phases=((16,4,2,0.3),) data=random masking.max_predictions=5 --dry-run", "say masking.max_predictions=none", "!masking.max_predictions masking.max_predictions=none"),
    ("pretrain", f"{SMALL} data=random eval_batches=1 sweep=seed=0,1 seed=1", "leave that out", "!seed"),
    ("finetune", "configs/finetune.py task=mrpc", "say init=DIR", "init=x --fields"),
    ("finetune", "configs/finetune.py init=x learning_rates=3", "as in (2e-5,3e-5)", "!learning_rates learning_rates=(2e-5,3e-5) --fields"),
    ("finetune", "configs/finetune.py init=x seeds=2 early_stop=1", "leave it out", "!early_stop --fields"),
    ("finetune", "configs/finetune.py init=x seeds=2 mesh.fsdp=2", "leave it out", "!mesh.fsdp --fields"),
    ("finetune", "configs/finetune.py init={sequence} dev=0.5 text=body max_length=16 --dry-run", "say train=FILE", "train={tmp}/table.csv"),
    ("finetune", "configs/finetune.py init={sequence} task=pos data={tmp}/treebanks epochs=1 batch=2 max_length=16 --dry-run", "say train= and dev=", "train={tmp}/words.tsv dev={tmp}/words.tsv"),
    ("finetune", f"{TABLE} --dry-run", "dev=0.1", "dev=0.5"),
    ("finetune", f"{TABLE} dev=0.01 --dry-run", "raise it, or give a dev file", "!dev dev=0.5"),
    ("finetune", f"{TABLE} dev=0.5 optimizer.warmup_steps=3 --dry-run", "set epochs=, or warmup=", "!optimizer.warmup_steps warmup=0.1"),
    ("finetune", f"{TABLE} dev=0.5 class_weights=high", "as in 1,2.5", "!class_weights class_weights=1,2.5"),
    ("finetune", f"{TABLE} !train train={{tmp}}/numbers.csv kind=number dev=0.5 class_weights=balanced --dry-run", "leave it out", "!class_weights"),
    ("finetune", f"{TABLE} dev=0.5 freeze=all reinit_layers=1 --dry-run", "leave one of the two out", "!reinit_layers"),
    ("finetune", f"{SQUAD} train={{tmp}}/squad.json dev=0.5 class_weights=balanced --dry-run", "leave them out for answers", "!class_weights"),
    ("finetune", f"{SQUAD} train={{tmp}}/squad2.json dev=0.5 --dry-run", "say task=squad2", "task=squad2"),
    ("finetune", "configs/finetune_ner.py init={pretraining} train={tmp}/words.tsv dev=0.5 max_length=16 epochs=1 --dry-run", "say task=pos", "task=pos"),
    ("finetune", "configs/finetune_swag.py init={multiple} train={tmp}/choices.csv dev=0.5 max_length=32 class_weights=balanced --dry-run", "leave it out", "!class_weights"),
    ("compare", "{tmp}/seen --output {tmp}/c.txt", "ends in .png", "!--output !{tmp}/c.txt --output {tmp}/c.png"),
    ("compare", "{tmp}/seen --by tokens --output {tmp}/d.png", "say --by step", "!--by !tokens --by step"),
    ("compare", "{tmp}/seen --output {tmp}/old.png", "--overwrite", "--overwrite"),
    ("prepare", TEXTS.format("a") + " --rows blocks", "needs --objective none", "--objective none"),
    ("prepare", TEXTS.format("m") + " --objective none --twice 0.2", "needs --rows sentences", "--rows sentences"),
    ("prepare", TEXTS.format("n") + " --objective none --rows sentences --twice 2", "a share between 0 and 1", "!--twice !2 --twice 1"),
    ("prepare", TEXTS.format("b") + " --unwrap --format lines --objective none", "leave one of them out", "!--unwrap"),
    ("prepare", TEXTS.format("c") + " --recipe google --objective none", "use the default recipe", "!--recipe !google"),
    ("prepare", TEXTS.format("d") + " --recipe google --documents files", "leave one out", "!--documents !files"),
    ("prepare", TEXTS.format("e").replace("texts.txt", "rows.json") + " --objective none", "--format jsonl", "--format jsonl"),
    ("prepare", TEXTS.format("p") + " --language German --objective none", "such as en, de or zh-hans", "!--language !German --language de"),
    ("prepare", TEXTS.format("o").replace("texts.txt", "numbers.csv") + " --objective none", "say --format text", "--format text"),
    ("prepare", TEXTS.format("f").replace("texts.txt", "rows.jsonl") + " --documents files --objective none", "leave it out", "!--documents !files"),
    ("prepare", "{tmp}/rows.jsonl " + TEXTS.format("g")  + " --recipe google", "leave those files out", "!{tmp}/rows.jsonl"),
    ("prepare", TEXTS.format("q") + " --recipe google --format text", "leave one out", "!--format !text"),
    ("prepare", TEXTS.format("r") + " --recipe google --language de", "leave one of them out", "!--language !de"),
    ("prepare", "{tmp}/texts.txt --vocab-size 40 --objective none", "--output DIR", "--output {tmp}/prepared-h"),
    ("prepare", "{tmp}/texts.txt --output {tmp}/prepared-i --objective none", "--vocab-size N", "--vocab-size 40"),
    ("prepare", "{tmp}/texts.txt --output {tmp}/prepared-j --vocab {tmp}/words.txt --objective none", "say --cased or --uncased", "--cased"),
    ("prepare", "{tmp}/texts.txt --output {tmp}/prepared-l --vocab {tmp}/words.txt --cased --character-coverage 0.9 --objective none", "leave it or --vocab out", "!--character-coverage !0.9"),
    ("prepare", "{tmp}/texts.txt --output {tmp}/seen --vocab-size 40 --objective none", "choose another directory", "!--output !{tmp}/seen --output {tmp}/prepared-k"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("program", "typed", "message", "advised"), OF_PROGRAMS, ids=lambda text: text[:40])
def test_what_a_training_program_advises_is_accepted(
    program, typed, message, advised, places, trained, capsys, monkeypatch, tmp_path
):
    run = import_module(f"train.{program}").main
    monkeypatch.chdir(ROOT)
    places = places | {"trained": trained}
    words = corrected([], filled(typed, places))
    if program in ("pretrain", "finetune") and "run=" not in typed:
        words += [f"run={tmp_path / 'run'}"]
    assert exit_code(run, words) == 2
    assert message in capsys.readouterr().err
    words = corrected(words, filled(advised, places))
    if "--fields" in words:
        with pytest.raises(SystemExit) as end:
            run(words)
        assert end.value.code == 0
    else:
        assert exit_code(run, words) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_prepared_directory_is_checked_and_made_again_elsewhere_as_advised(places, capsys):
    run = import_module("train.prepare").main
    first = filled("{tmp}/texts.txt --output {tmp}/first --vocab-size 40 --workers 1 --objective none", places)
    assert exit_code(run, first) == 0
    other = ["41" if word == "40" else word for word in first]
    assert exit_code(run, other) == 2
    assert "choose another directory" in capsys.readouterr().err
    assert exit_code(run, [word.replace("first", "second") for word in other]) == 0
    check = filled("--check {tmp}/first --output {tmp}/third", places)
    assert exit_code(run, check) == 2
    assert "cannot be combined" in capsys.readouterr().err
    assert exit_code(run, check[:2]) == 0


@pytest.mark.slow
def test_another_run_directory_is_chosen_as_advised(places, trained, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    words = filled(f"{TINY} {SHORT}", places)
    held = RunDirectory(trained)
    held.acquire()
    try:
        assert exit_code(import_module("train.pretrain").main, [*words, f"run={trained}"]) == 2
    finally:
        held.release()
    assert "choose another run=" in capsys.readouterr().err
    assert exit_code(import_module("train.pretrain").main, [*words, f"run={tmp_path / 'another'}"]) == 0


@pytest.mark.slow
def test_the_advice_of_each_message_of_a_training_program_is_run():
    tried = [message for _, _, message, _ in OF_PROGRAMS]
    elsewhere = {
        "choose another directory": "the tests above",
        "choose another run=": "the tests above",
        "train on text, or leave": "the commands above with blimp=, probe= and finetune=",
        "prepare the data again": "tests/faults/test_hostile.py",
        "does not fit into the memory of": "not run: the memory of no machine of the tests is full at the first step",
        "only TPUs have slices": "tests/train/planning/test_plan.py",
        "leave --price and --picture out": "tests/train/planning/test_plan.py",
        "start another run with init=": "tests/train/pretraining/test_packing.py",
        "join them first": "tests/train/preparation/test_inputs.py",
        "is on a bucket": "a copy to a local disk, which is no command of ours",
        "name it once, with the sum": "tests/train/pretraining/test_mixture.py",
        "say masking.max_predictions=N masking.probability=P": "tests/train/pretraining/test_mixture.py",
        "prepare the text of": "tests/train/pretraining/test_mixture.py",
        "a file without answers can only be test=": "tests/train/finetuning",
        "not a job or a result of one": "only a worker of ours reads such files",
        "say allow_change=data to continue": "tests/train/pretraining/test_mixture.py",
        "say allow_change=teacher to continue": "tests/train/pretraining/test_distill.py",
        "has no pooler, so a random one": "tests/train/finetuning/test_start.py",
        "is a symbolic link": "tests/train/run/test_rundir.py",
        "on a file system that has locks": "tests/train/run/test_rundir.py",
        "is a sweep; name one of its runs": "tests/train/diagnosis/test_doctor.py",
        "say python -m train.supervise -- COMMAND": "tests/train/test_supervise.py",
        "let phases= begin with": "tests/train/pretraining/test_mixture.py",
        "say eval_data=DIR too": "not run: no test has such a job or such data for a sweep",
        "give shares above": "tests/train/pretraining/sweep/test_sweep.py",
        "lower eval_every, or give fewer shares": "tests/train/pretraining/sweep/test_sweep.py",
        "a sweep trains in one process": "not run: no test has such a job or such data for a sweep",
        "start it on one host alone": "not run: no test has such a job or such data for a sweep",
        "leave one of the values out": "tests/train/pretraining/sweep/test_sweep.py",
        "is there twice; say": "tests/train/pretraining/sweep/test_sweep.py",
        "are static; leave them out": "tests/train/pretraining/test_phases.py",
        "must be the same for all members": "tests/train/pretraining/sweep/test_sweep.py",
        "has a single run in it": "tests/train/pretraining/sweep/test_sweep.py",
        "was started with other values": "tests/train/pretraining/sweep/test_sweep.py",
        "sweep: takes prepared data": "tests/train/pretraining/sweep/test_sweep.py",
        "say sweep_in=together": "tests/train/pretraining/sweep/test_together.py",
        "or say sweep_in=turn": "tests/train/pretraining/sweep/test_together.py",
        "say init_at= the step of a checkpoint": "tests/train/pretraining/sweep/test_together.py",
        "or leave eval_data out": "tests/train/pretraining/test_pretrain.py",
        "is not a run directory; leave init_at out": "not run: no test has a published model with init_at=",
        "no member has a held-out loss": "not run: no test has such a job or such data for a sweep",
        "prepare the data with --held-out 0.1, or leave": "not run: no test has such a job or such data for a sweep",
    }
    assert not_run(sorted((ROOT / "train").rglob("*.py")), [*tried, *elsewhere]) == []
