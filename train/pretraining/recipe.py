"""What a pretraining run is made of: one frozen dataclass, its checks, and `key=value` overrides of any field."""

import ast
import dataclasses
import difflib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.errors import UserError
from bert_jax.training.distillation import DistillationConfig
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.sharding import MeshConfig


class Phase(NamedTuple):
    """A stretch of the run with one sequence length (paper, A.2: 128 for 90 % of the steps, then 512)."""

    length: int
    batch: int
    steps: int


@dataclass(frozen=True)
class TextConfig:
    """How `text=` becomes prepared data; the fields are the options of `python -m train.prepare`."""

    format: str | None = None
    field: str = "text"
    vocab: str | None = None  # None: that of init=, or one of vocab_size pieces learnt from the text
    vocab_size: int = 30_000
    cased: bool | None = None  # None: uncased, or what `vocab` says
    strip_accents: bool | None = None
    objective: str = "nsp"
    short_seq_prob: float = 0.1
    dupe_factor: int | None = None  # None: 10; 1 for objective "none"
    held_out: float = 0.005
    workers: int | None = None


@dataclass(frozen=True)
class PretrainConfig:
    """A pretraining run. `phases` gives lengths, batch sizes and steps; one schedule spans them all.

    `optimizer.total_steps` is the sum of the phases' steps and need not be said; `model.vocab_size` follows the
    data's tokenizer unless it is given. Every number of steps counts optimizer steps (consumed batches).
    """

    model: BertConfig = field(default_factory=BertConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    phases: tuple[Phase, ...] = (Phase(128, 256, 900_000), Phase(512, 256, 100_000))
    masking: MaskingConfig | None = None  # None: as the data was prepared
    mesh: MeshConfig = field(default_factory=MeshConfig)
    accumulation: int = 1  # micro-batches a step
    fused_loss: bool = True  # masked LM's loss without all logits at once; not with mesh.tensor > 1 or a teacher
    seed: int = 0

    data: str | None = None  # a prepared directory, or "random"
    text: str | None = None  # files or a glob, prepared into the run directory first
    text_options: TextConfig = field(default_factory=TextConfig)
    eval_data: str | None = None  # a prepared directory; None: the held-out part of `data`
    init: str | None = None  # a run directory, a folder or a hub id; its architecture is taken over
    init_optimizer: bool = False  # with its moments: of a run directory or of a TF1 checkpoint
    init_step: bool = False  # and at its step, not at 0
    teacher: str | None = None  # a run directory, a folder or a hub id to distil from, beside masked LM
    distillation: DistillationConfig | None = None  # with a teacher; None: DistilBERT's weights

    log_every: int = 50
    eval_every: int = 1_000
    eval_batches: int = 50
    save_every: int = 1_000
    keep: int = 3
    max_skipped_in_a_row: int = 20  # non-finite steps after which the run stops with exit code 3
    export_at_end: bool = True

    def __post_init__(self):
        total = _steps(self.phases)
        phases = tuple(Phase(*phase) for phase in self.phases)
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "optimizer", dataclasses.replace(self.optimizer, total_steps=total))
        if not phases or not all(isinstance(value, int) and value >= 1 for phase in phases for value in phase):
            raise UserError(f"phases: found {self.phases}; each needs (length, batch, steps), all at least 1")
        longest = max(phase.length for phase in phases)
        if self.init is None and longest > self.model.longest_input:  # with init= the model is the source's
            raise UserError(
                f"phases: length {longest} is more than model.max_position_embeddings = "
                f"{self.model.max_position_embeddings} has room for; raise the one or lower the other"
            )
        for phase in phases:
            if phase.batch % self.accumulation:
                raise UserError(
                    f"accumulation: {self.accumulation} does not divide the batch of {phase.batch} of {tuple(phase)}"
                )
        if self.distillation is not None and self.teacher is None:
            raise UserError("distillation: weights for learning from a teacher, and there is none; say teacher=SOURCE")
        if self.keep < 2:
            raise UserError(f"keep: found {self.keep}; at least 2, so that a damaged checkpoint has one before it")
        for name in (
            "log_every",
            "eval_every",
            "eval_batches",
            "save_every",
            "accumulation",
            "max_skipped_in_a_row",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: found {getattr(self, name)}; at least 1")

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> tuple[int, Phase]:
        """The first step of the phase that batch number `step` belongs to, and the phase."""
        start = 0
        for phase in self.phases:
            if step < start + phase.steps:
                return start, phase
            start += phase.steps
        raise ValueError(f"step {step} lies beyond the run's {start} steps")


def to_json(config: Any) -> dict[str, Any]:
    """The config as plain JSON values, all fields, nested as the dataclasses are."""
    return {
        f.name: to_json(value) if dataclasses.is_dataclass(value) else _plain(value)
        for f in dataclasses.fields(config)
        for value in [getattr(config, f.name)]
    }


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def differing_fields(old: dict, new: dict, prefix: str = "") -> list[str]:
    """Dotted names of the fields that differ between two configs in JSON form."""
    names = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differing_fields(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names


def override(config: Any, words: dict[str, str]) -> Any:
    """`config` with the field at each dotted path set to its text, read as the field's own type.

    All of them are checked together, so their order does not matter. Raises UserError for an unknown field
    (naming the nearest ones) and for a value of another type.
    """
    for path in words:
        if path not in _all_paths(config):
            raise UserError(_unknown(config, path))
    return _replace(config, {tuple(path.split(".")): text for path, text in words.items()}, "")


def _replace(config: Any, words: dict[tuple[str, ...], str], prefix: str) -> Any:
    hints = typing.get_type_hints(type(config))
    changes = {
        path[0]: _parse(text, hints[path[0]], prefix + path[0]) for path, text in words.items() if len(path) == 1
    }
    for name in dict.fromkeys(path[0] for path in words if len(path) > 1):
        inner = getattr(config, name) or _dataclass_type(hints[name])()
        inside = {path[1:]: text for path, text in words.items() if path[0] == name and len(path) > 1}
        if name == "optimizer" and "phases" in changes:  # its checks need the steps that these phases have
            inside[("total_steps",)] = str(_steps(changes["phases"]))
        changes[name] = _replace(inner, inside, f"{prefix}{name}.")
    return dataclasses.replace(config, **changes)


def _steps(phases: Any) -> int:
    try:
        return max(1, sum(Phase(*phase).steps for phase in phases))
    except TypeError:
        raise UserError(f"phases: found {phases!r}; expected ((length, batch, steps), ...)") from None


def _dataclass_type(hint: Any) -> Any:
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    return next((o for o in options if dataclasses.is_dataclass(o)), None)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _all_paths(config: Any, prefix: str = "") -> list[str]:
    paths = []
    for name, hint in typing.get_type_hints(type(config)).items():
        inner = _dataclass_type(hint)
        paths.append(prefix + name)
        if inner:
            paths += _all_paths(getattr(config, name) or inner(), f"{prefix}{name}.")
    return paths


def _unknown(config: Any, path: str) -> str:
    known = _all_paths(config)
    last = path.rpartition(".")[2]
    names = {k: k.rpartition(".")[2] for k in known}
    near = [k for k, name in names.items() if last in (name, "".join(word[0] for word in name.split("_")))]
    near += [k for k in difflib.get_close_matches(path, known, n=3, cutoff=0.5) if k not in near]
    hint = f"; did you mean {' or '.join(near[:3])}?" if near else ""
    return f"{path} is no field of the config{hint}"


def _parse(text: str, hint: Any, path: str) -> Any:
    if _is_union(hint):
        options = typing.get_args(hint)
        if type(None) in options and text.lower() in ("none", "null"):
            return None
        hint = next(o for o in options if o is not type(None))
    if dataclasses.is_dataclass(hint):
        inner = ", ".join(f"{path}.{f.name}" for f in dataclasses.fields(hint))
        raise UserError(f"{path}: found {text!r}; set its fields one by one ({inner})")
    if typing.get_origin(hint) is typing.Literal:
        if text not in typing.get_args(hint):
            raise UserError(f"{path}: found {text!r}; expected {' or '.join(typing.get_args(hint))}")
        return text
    if hint is str:
        return text
    if hint is bool:
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise UserError(f"{path}: found {text!r}; expected true or false")
    if hint in (int, float):
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            raise UserError(f"{path}: found {text!r}; expected {'a whole' if hint is int else 'a'} number") from None
        if hint is int and value != int(value):
            raise UserError(f"{path}: found {text!r}; expected a whole number")
        return hint(value)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UserError(f"{path}: found {text!r}; expected a Python literal such as ((128, 256, 1000),)") from None


def load_recipe(path: str, kind: type = PretrainConfig) -> Any:
    """Runs the config file and returns what its `get_config()` gives, of the `kind` that a program takes."""
    import importlib.util

    file = Path(path)
    if not file.is_file():
        near = sorted(p.as_posix() for p in (Path(__file__).parents[2] / "configs").glob("*.py"))
        names = ", ".join(Path(p).name for p in near)
        raise UserError(f"{path}: no such config file; configs/ has {names}")
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(f"{path}: has no get_config(); a config file defines get_config() -> {kind.__name__}")
    config = module.get_config()
    if type(config).__name__ != kind.__name__:
        raise UserError(f"{path}: is a {type(config).__name__}; this program takes a {kind.__name__}")
    return config
