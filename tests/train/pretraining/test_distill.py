"""`teacher=`: a run that learns from another model, from its first step to its export; what it refuses."""

import json
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays
from bert_jax.formats.training_record import training_record
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS, BertForMaskedLM
from bert_jax.surgery.edit import edit
from bert_jax.training.distillation import DistillationConfig
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.tree import sha256_of_parameters, unflatten
from tests.hub_server import HubServer
from tests.run_directory import assert_equal_states, records, state_of, stopped_at
from tests.train.pretraining.family_runs import BATCH, LENGTH, prepare_for, small_config
from train import pretrain
from train.pretraining import objective
from train.pretraining.objective import check_same_teacher, objective_of
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import PreparedData
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED, EXIT_USER_ERROR, exit_code

pytestmark = pytest.mark.slow

RECIPE = '''"""Sixty steps of a small DistilBERT."""

from bert_jax.training.optimizer import OptimizerConfig
from tests.train.pretraining.family_runs import BATCH, LENGTH, small_config
from train.pretraining.recipe import Phase


def get_config():
    return small_config(
        "distilbert",
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=2),
        phases=(Phase(LENGTH, BATCH, 60),),
        log_every=1,
        eval_every=30,
        save_every=10,
    )
'''


def write_model(folder: Path, config: BertConfig, tokenizer: Tokenizer, seed: int = 0) -> str:
    """A masked LM with random weights, large enough to make its predictions differ."""
    config = config.replace(initializer_range=0.3)
    params = BertForMaskedLM(config).init(jax.random.key(seed), np.zeros((1, 1), np.int32))["params"]
    return str(save_pretrained(folder, config, jax.device_get(params), tokenizer, head="mlm"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return PreparedData(str(prepare_for("distilbert", tmp_path_factory.mktemp("prepared"))))


@pytest.fixture(scope="module")
def teacher(data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> str:
    config = small_config("bert").model.replace(num_hidden_layers=3, vocab_size=data.vocab_size)
    return write_model(tmp_path_factory.mktemp("teacher") / "bert", config, data.tokenizer)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "student.py"
    path.write_text(RECIPE)
    return str(path)


def test_a_student_learns_of_its_teacher_and_resumes_to_the_bit(
    recipe, data: PreparedData, teacher: str, tmp_path: Path
):
    student = str(edit(teacher, tmp_path / "student", student="distilbert", layers=(0, 2)).directory)
    words = [recipe, f"data={data.path}", f"init={student}", f"teacher={teacher}"]
    assert pretrain.main([*words, f"run={tmp_path / 'straight'}"]) == EXIT_DONE
    rows = records(tmp_path / "straight", "train")
    first, last = rows[0], rows[-1]
    assert last["step"] == 60
    for name in ("loss", "kl_loss", "cosine_loss"):
        assert last[name] < 0.8 * first[name], name
    assert first["loss"] == pytest.approx(5 * first["kl_loss"] + 2 * first["mlm_loss"] + first["cosine_loss"], rel=1e-5)

    with stopped_at(13):
        assert pretrain.main([*words, f"run={tmp_path / 'stopped'}"]) == EXIT_PREEMPTED
    assert pretrain.main([*words, f"run={tmp_path / 'stopped'}"]) == EXIT_DONE
    assert_equal_states(tmp_path / "straight", tmp_path / "stopped")
    state = unflatten(state_of(tmp_path / "straight"))
    for tree in (state["params"], state["opt_state"]["moments"]["mu"]):
        assert set(tree["bert"]["encoder"]) == {"layer_0", "layer_1"}  # the student's alone
    config = bert_jax.load(tmp_path / "straight" / "export", head="mlm").config
    assert (config.model_type, config.num_hidden_layers) == ("distilbert", 2)


def test_a_teacher_that_changed_meanwhile_is_refused_until_it_is_allowed(
    recipe, data: PreparedData, teacher: str, tmp_path: Path, capsys
):
    mine, run = tmp_path / "teacher", tmp_path / "run"
    copytree(teacher, mine)
    words = [recipe, f"data={data.path}", f"teacher={mine}", f"run={run}", "distillation.alpha_cos=0"]
    with stopped_at(3):
        assert exit_code(pretrain.main, words) == EXIT_PREEMPTED
    rmtree(mine)
    write_model(mine, bert_jax.load(teacher, head="mlm").config, Tokenizer.load(Path(teacher)), seed=1)
    sums = [sha256_of_parameters(load_arrays(place, head="mlm").params)[:12] for place in (teacher, mine)]
    capsys.readouterr()
    assert exit_code(pretrain.main, words) == EXIT_USER_ERROR
    said = capsys.readouterr().err
    assert f"teacher: {mine} has changed since this run reached step 3 (" in said
    assert f"was {sums[0]} and is {sums[1]}); put it back, or say allow_change=teacher to continue" in said

    with stopped_at(6):
        assert exit_code(pretrain.main, [*words, "allow_change=teacher"]) == EXIT_PREEMPTED
    with stopped_at(9):  # the checkpoint has the new sum
        assert exit_code(pretrain.main, words) == EXIT_PREEMPTED
    # A teacher of another name was refused or allowed before.
    with stopped_at(12):
        assert exit_code(pretrain.main, [*words, f"teacher={teacher}"]) == EXIT_USER_ERROR
    with stopped_at(12):
        assert exit_code(pretrain.main, [*words, f"teacher={teacher}", "allow_change=teacher"]) == EXIT_PREEMPTED


def test_a_checkpoint_that_does_not_know_its_teacher_is_accepted(teacher: str):
    config = config_with(teacher)
    facts = {"config": {"teacher": teacher}, "step": 1234}
    check_same_teacher(config, "a" * 64, facts, ())
    check_same_teacher(config, "a" * 64, facts | {"teacher_digest": "a" * 64}, ())
    check_same_teacher(config, "a" * 64, facts | {"teacher_digest": "b" * 64, "config": {"teacher": "other"}}, ())
    with pytest.raises(UserError, match=r"since this run reached step 1,234 \("):
        check_same_teacher(config, "a" * 64, facts | {"teacher_digest": "b" * 64}, ("data",))


def test_the_processes_of_a_job_compare_their_teachers(data: PreparedData, teacher: str, monkeypatch):
    compared = []
    monkeypatch.setattr(objective, "same_everywhere", compared.append)
    _, digest = objective.objective_and_digest(config_with(teacher), data, make_mesh(MeshConfig()))
    assert digest == sha256_of_parameters(load_arrays(teacher, head="mlm").params)
    assert compared == [{"sum of the teacher's parameters": digest[:12]}]
    assert objective.objective_and_digest(config_with(teacher), data, make_mesh(MeshConfig()), read=False)[1] is None
    assert len(compared) == 1


def test_the_card_names_a_published_teacher_and_its_commit(
    recipe, data: PreparedData, teacher: str, tmp_path: Path, hub: HubServer
):
    commit = hub.publish("somebody/bert", {path.name: path.read_bytes() for path in Path(teacher).iterdir()})
    words = [
        recipe,
        f"data={data.path}",
        "teacher=somebody/bert",
        "distillation.alpha_cos=0",
        f"run={tmp_path / 'run'}",
    ]
    words += [f"phases=(({LENGTH},{BATCH},2),)", "optimizer.warmup_steps=0", "distillation.temperature=3"]
    assert pretrain.main(words) == EXIT_DONE
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert f"| distilled from | somebody/bert@{commit} |" in card
    assert "| distillation temperature | 3.0 |" in card
    assert "| distillation alpha_ce | 5.0 |" in card
    assert "| distillation alpha_cos | 0.0 |" in card


@pytest.mark.parametrize("weights", [None, {"temperature": 4.0, "alpha_mlm": 0.5}])
def test_the_card_says_how_a_model_was_distilled_without_a_path(tmp_path: Path, weights):
    config = {"phases": [[16, 4, 2]], "teacher": "/secret/bert", "distillation": weights}
    (tmp_path / "config.json").write_text(json.dumps(config))
    card = training_record(tmp_path, 2)
    assert "| distilled from | a model that is not published |" in card
    assert "secret" not in card
    expected = DistillationConfig(**(weights or {}))
    for name in ("temperature", "alpha_ce", "alpha_mlm", "alpha_cos"):
        assert f"| distillation {name} | {getattr(expected, name)} |" in card

    (tmp_path / "config.json").write_text(json.dumps(config | {"teacher": None}))
    assert "distil" not in training_record(tmp_path, 2)


def test_a_dry_run_counts_the_teachers_memory(recipe, data: PreparedData, teacher: str, capsys):
    sizes = []
    for words in ([], [f"teacher={teacher}"]):
        assert pretrain.main([recipe, f"data={data.path}", *words, "--dry-run", "--json"]) == EXIT_DONE
        facts = json.loads(capsys.readouterr().out)
        sizes.append((facts["parameters"], facts["phases"][0]["device_bytes_state_and_batch"]))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > sizes[0][1] + 4 * sizes[0][0]  # the teacher is larger than the student


def config_with(teacher: str, *, source: str | None = None, **model: Any) -> PretrainConfig:
    """A student of `teacher`'s vocabulary, which is to learn from `source`; None: from `teacher`."""
    student = small_config("distilbert")
    fields = {"vocab_size": bert_jax.load(teacher, head="mlm").config.vocab_size} | model
    return small_config("distilbert", model=student.model.replace(**fields), teacher=source or teacher)


def test_a_teacher_with_other_words_in_the_same_number_is_refused(data: PreparedData, teacher: str, tmp_path: Path):
    assert data.tokenizer
    pieces = list(data.tokenizer.vocabulary)
    pieces[10], pieces[11] = pieces[11], pieces[10]
    config = small_config("bert").model.replace(vocab_size=data.vocab_size)
    other = write_model(tmp_path / "other", config, Tokenizer.from_vocabulary(pieces, cased=False))
    with pytest.raises(UserError, match=r"^teacher: token 10 is"):
        objective_of(config_with(other), data, make_mesh(MeshConfig()))


def test_a_teacher_with_a_value_that_is_not_finite_is_refused(data: PreparedData, teacher: str, tmp_path: Path):
    copytree(teacher, tmp_path / "teacher")
    tensors = load_file(tmp_path / "teacher/model.safetensors")
    tensors["bert.embeddings.LayerNorm.weight"][0] = np.inf
    save_file(tensors, tmp_path / "teacher/model.safetensors")
    with pytest.raises(UserError, match=r"^teacher: .*bert/embeddings/LayerNorm/scale that are not finite"):
        objective_of(config_with(str(tmp_path / "teacher")), data, make_mesh(MeshConfig()))


@pytest.mark.parametrize("head", ["encoder", "sequence-classification"])
def test_a_teacher_without_a_masked_lm_head_is_told_in_words_of_the_program(
    data: PreparedData, teacher: str, tmp_path: Path, head
):
    config = bert_jax.load(teacher, head="mlm").config
    params = HEADS[head](config).init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    other = str(save_pretrained(tmp_path / "other", config, jax.device_get(params), data.tokenizer, head=head))
    with pytest.raises(UserError, match=r"^teacher: .*no masked-LM head.*; expected a model with head mlm") as error:
        objective_of(config_with(teacher, source=other), data, make_mesh(MeshConfig()))
    assert "allow_missing" not in str(error.value)
    assert other in str(error.value)


def test_a_teacher_without_a_layer_is_not_whole(data: PreparedData, teacher: str, tmp_path: Path):
    copytree(teacher, tmp_path / "teacher")
    tensors = load_file(tmp_path / "teacher/model.safetensors")
    kept = {name: array for name, array in tensors.items() if "layer.1.attention" not in name}
    save_file(kept, tmp_path / "teacher/model.safetensors")
    with pytest.raises(
        UserError, match=r"^teacher: .* is not whole \(missing: bert/encoder/layer_1/.* more\)"
    ) as error:
        objective_of(config_with(teacher, source=str(tmp_path / "teacher")), data, make_mesh(MeshConfig()))
    assert "allow_missing" not in str(error.value)


def test_a_teacher_that_is_nowhere_or_no_model_names_the_field(data: PreparedData, teacher: str, tmp_path: Path):
    for place, says in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "is not a model")):
        with pytest.raises(FileNotFoundError, match=f"^teacher: .*{says}"):
            objective_of(config_with(teacher, source=str(place)), data, make_mesh(MeshConfig()))


@pytest.mark.parametrize(
    ("model", "says"),
    [({"vocab_size": 99}, "^teacher: it has .* tokens and the student 99"), ({"hidden_size": 8}, "alpha_cos=0")],
)
def test_a_student_that_does_not_fit_is_one_line(data: PreparedData, teacher: str, model, says):
    with pytest.raises(UserError, match=says) as error:
        objective_of(config_with(teacher, **model), data, make_mesh(MeshConfig()))
    assert "\n" not in str(error.value)


def test_pairs_are_not_distilled(teacher: str, tmp_path: Path):
    pairs = PreparedData(str(prepare_for("bert", tmp_path)))
    with pytest.raises(UserError, match=r"objective nsp: say text_options\.objective=none"):
        objective_of(config_with(teacher), pairs, make_mesh(MeshConfig()))


def test_weights_without_a_teacher_are_refused():
    with pytest.raises(UserError, match="say teacher=SOURCE"):
        small_config("distilbert", distillation=DistillationConfig())
