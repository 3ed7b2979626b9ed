"""Write a task's model as programs of jax.export with their weights beside: a folder that runs without this package."""

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.new_folder import new_folder, write_text
from bert_jax.formats.safetensors import write_tensors
from bert_jax.inference import pipeline as pipelines
from bert_jax.inference.compiled import facts as compiled_facts
from bert_jax.inference.compiled.facts import (
    CARD,
    MASKS,
    PROGRAMS,
    ROWS,
    TOKENS,
    USUAL_PLATFORMS,
    WEIGHTS,
    ArraySpec,
    Facts,
    program_name,
    read_facts,
    sums_of,
    write_facts,
)
from bert_jax.inference.compiled.run import read_programs, read_weights
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.task_model import ANY_LENGTH, TaskModel
from bert_jax.model.layers import platform_dtype
from bert_jax.tree import as_numpy, unflatten

TASKS: dict[str, Callable[..., TaskModel]] = {task: pipelines.TASKS[task] for task in compiled_facts.TASKS}
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
LENGTHS = (32, 128, 512)


def export_compiled(
    source: "str | os.PathLike[str] | Loaded",
    directory: str | os.PathLike[str],
    task: str,
    *,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] = (1, 8),
    platforms: Sequence[str] = USUAL_PLATFORMS,
    dtype: str = "float32",
    pooling: str | None = None,
    masks: int = 8,
    top_k: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a folder that `load_compiled` runs, and whoever has jax: a program for each shape, and the weights once.

    A program is what the task's pipeline compiles for plain batches, in StableHLO, which JAX promises to read for six
    months at least (https://docs.jax.dev/en/latest/export/export.html). Its arguments are the weights, by their paths,
    and a dict of arrays; it returns another. One program runs on every platform that it was lowered for, whichever it
    was lowered on. Everything is written beside `directory` under a hidden name, read back, and renamed.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned, with the head of the task.
        directory: where to; there must be nothing of that name.
        task: a key of `TASKS`.
        lengths: tokens of a row; None: 32, 128 and 512, or as many as the model takes in place of what is more.
        batch_sizes: rows of a batch; there is a program for each length and each of these.
        platforms: of `PLATFORMS`.
        dtype: "float32" or "bfloat16", the type of the products' operands. What leaves a bfloat16 product is float32 on
            a CPU and bfloat16 on an accelerator (`stream_dtype`): a program for both holds both.
        pooling: of embed, as `TextEmbedding`.
        masks: of fill-mask, how many positions a row can be asked about.
        top_k: of fill-mask, how many tokens each gets.
        progress: called with (how many programs are made, how many there will be) after each.

    Returns:
        The directory.

    Raises:
        UserError: the name is taken, an argument that makes no sense or asks for more than the model takes, a model
            with another head; a parameter that is not finite.
    """
    target = Path(directory)
    _refuse_taken(target)
    platforms = _checked_platforms(platforms, dtype)
    if task not in TASKS:
        raise UserError(f"task {task!r}: expected one of {', '.join(TASKS)}")
    if pooling is not None and task != "embed":
        raise UserError(f"pooling={pooling!r}: only for embed, not for {task}")
    options: dict[str, Any] = {"embed": {"pooling": pooling}, "question-answering": {"max_seq_len": ANY_LENGTH}}
    model = TASKS[task](source, dtype=dtype, **options.get(task, {}))
    shapes = _shapes(model, lengths, batch_sizes)
    inputs, outputs = _specs(task, model, masks, min(top_k, model.tokenizer.vocab_size))
    weights = _weights(model)
    facts = Facts(
        task=task,
        dtype=dtype,
        platforms=platforms,
        shapes=shapes,
        inputs=inputs,
        outputs=outputs,
        calling_convention_version=jax.config.values["jax_export_calling_convention_version"],
        made_by={"jax": jax.__version__, "jaxlib": version("jaxlib")},
        tokenizer=model.tokenizer.fingerprint,
        files={},
        **_beside(task, model, masks),
    )
    function = _function(task, model, outputs, platforms)
    with new_folder(target) as folder:
        with zipfile.ZipFile(folder / PROGRAMS, "w", zipfile.ZIP_DEFLATED) as file:
            for number, shape in enumerate(shapes):
                program = _exported(function, weights, facts, shape)
                # A date of its own, for equal bytes of equal programs.
                member = zipfile.ZipInfo(program_name(*shape))
                file.writestr(member, bytes(program.serialize()), zipfile.ZIP_DEFLATED)
                if progress:
                    progress(number + 1, len(shapes))
        write_tensors(folder / WEIGHTS, weights)
        model.tokenizer.with_max_length(max(tokens for _, tokens in shapes)).save(folder)
        write_text(folder / CARD, _card(target.resolve().name, facts))
        write_facts(folder, replace(facts, files=sums_of(folder)))
        _read_back(folder, weights)
        _refuse_taken(target)
    return target


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise UserError(f"{target}: exists already; remove it, or name another folder")


def _checked_platforms(platforms: Sequence[str], dtype: str) -> tuple[str, ...]:
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"dtype={dtype!r}: expected float32 or bfloat16")
    wrong = [name for name in platforms if name not in PLATFORMS]
    if wrong or not platforms:
        raise UserError(f"platforms={','.join(platforms)}: expected some of {', '.join(PLATFORMS)}")
    return tuple(sorted(set(platforms)))


def _shapes(model: TaskModel, lengths: Sequence[int] | None, batch_sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(rows, tokens), ascending by tokens within rows."""
    if lengths is None:
        lengths = sorted({min(length, model.longest) for length in LENGTHS})
    shortest = model.tokenizer.special_tokens_added(pair=False)
    for length in lengths:
        if not shortest <= length <= model.longest:
            raise UserError(
                f"lengths: {length}; expected {shortest} to {model.longest} tokens, as the model takes them"
            )
    for size in batch_sizes:
        if size < 1:
            raise UserError(f"batch_sizes: {size}; expected at least 1")
    if not lengths or not batch_sizes:
        raise UserError("lengths and batch_sizes: at least one of each")
    return tuple(sorted({(size, length) for size in batch_sizes for length in lengths}))


def _specs(task: str, model: TaskModel, masks: int, top_k: int) -> tuple[tuple[ArraySpec, ...], tuple[ArraySpec, ...]]:
    """What goes in and comes out; outputs in the order of `TaskModel.apply`."""
    if masks < 1 or top_k < 1:
        raise UserError(f"masks={masks}, top_k={top_k}: expected at least 1")
    config, tokenizer = model.config, model.tokenizer
    inputs = [
        ArraySpec("input_ids", "int32", (ROWS, TOKENS), pad=tokenizer.pad_token_id, below=config.vocab_size),
        ArraySpec("attention_mask", "int32", (ROWS, TOKENS), below=2),
        ArraySpec("token_type_ids", "int32", (ROWS, TOKENS), below=max(config.type_vocab_size, 1)),
    ]
    classes = len(config.labels)
    if task == "fill-mask":
        inputs.append(ArraySpec("mlm_positions", "int32", (ROWS, MASKS), below=TOKENS))
        found = [("probabilities", "float32", (ROWS, MASKS, top_k)), ("token_ids", "int32", (ROWS, MASKS, top_k))]
    elif task == "question-answering":
        found = [(name, "float32", (ROWS, TOKENS)) for name in ("start_logits", "end_logits")]
    elif task == "token-classification":
        found = [("logits", "float32", (ROWS, TOKENS, classes))]
    elif task == "text-classification":
        found = [("logits", "float32", (ROWS, classes))]
    else:
        found = [("embeddings", "float32", (ROWS, config.hidden_size))]
    return tuple(inputs), tuple(ArraySpec(*one) for one in found)


def _beside(task: str, model: TaskModel, masks: int) -> dict[str, Any]:
    """What one must know of a task to read its outputs."""
    if task == "embed":
        assert isinstance(model, TextEmbedding)
        return {"pooling": model.pooling}
    if task == "fill-mask":
        return {"masks": masks, "mask_token_id": model.tokenizer.mask_token_id}
    if task == "question-answering":
        return {}
    problem = {"problem_type": model.config.problem_type} if task == "text-classification" else {}
    return {"labels": tuple(model.config.labels), **problem}


def _weights(model: TaskModel) -> dict[str, np.ndarray]:
    flat = as_numpy(jax.device_get(model.engine.programs.params))
    for path, array in flat.items():
        if not np.isfinite(array).all():
            raise UserError(f"{model.source}: {path} holds values that are not finite; such weights are not written")
    return flat


def _function(
    task: str, model: TaskModel, outputs: Sequence[ArraySpec], platforms: Sequence[str]
) -> Callable[..., dict[str, jax.Array]]:
    """`model.apply` from weights by path and a batch to a dict of arrays, of the same types on every platform."""
    options = {"top_k": outputs[0].axes[-1]} if task == "fill-mask" else {}

    def apply(platform: str, weights: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        computing = model.with_activations(platform_dtype(model.config.dtype, platform))
        arrays = computing.apply(unflatten(weights), batch, **options)
        return {spec.name: jnp.asarray(x, spec.dtype) for spec, x in zip(outputs, arrays, strict=True)}

    on_cpu, *on_others = (partial(apply, name) for name in dict.fromkeys(("cpu", *platforms)))
    if model.config.dtype == "float32" or not on_others:
        return on_cpu
    if "cpu" not in platforms:
        return on_others[0]
    return lambda weights, batch: jax.lax.platform_dependent(weights, batch, cpu=on_cpu, default=on_others[0])


def _exported(
    function: Callable[..., Any], weights: Mapping[str, np.ndarray], facts: Facts, shape: tuple[int, int]
) -> jax_export.Exported:
    sizes = facts.sizes(*shape)
    batch = {spec.name: jax.ShapeDtypeStruct(spec.shape(sizes), np.dtype(spec.dtype)) for spec in facts.inputs}
    params = {path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, array in weights.items()}
    with _no_call_stacks():
        return jax_export.export(jax.jit(function), platforms=facts.platforms)(params, batch)


@contextmanager
def _no_call_stacks() -> Iterator[None]:
    """Programs say which call each operation comes from, with the names of files: where this package lies, and who
    called it, is nobody's business, and equal models make equal programs."""
    options = {
        "jax_hlo_source_file_canonicalization_regex": ".*",
        "jax_include_full_tracebacks_in_locations": False,
    }
    before = {name: jax.config.values[name] for name in options}
    try:
        for name, value in options.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _read_back(folder: Path, weights: Mapping[str, np.ndarray]) -> None:
    """What was written is read as a user would, whether or not it can run here."""
    facts = read_facts(folder)
    written = read_weights(folder, read_programs(folder, facts).values())
    if any(written[path].tobytes() != array.tobytes() for path, array in weights.items()):
        raise UserError(f"{folder / WEIGHTS}: reads back with other bits than were written; is the disk sound?")
    if Tokenizer.load(folder).fingerprint != facts.tokenizer:
        raise UserError(f"{folder}: the tokenizer's files read back as another tokenizer")


_CARD = """\
# {name}

A BERT for {task}, compiled by bert_jax to programs of jax.export for {platforms}. It runs with jax, flatbuffers and
safetensors, in this folder:

```python
import zipfile

import jax
import numpy as np
from jax import export
from safetensors.numpy import load_file

weights = jax.device_put(load_file("{weights}"))
program = zipfile.ZipFile("{programs}").read("{member}")
run = jax.jit(export.deserialize(bytearray(program)).call)
batch = {{
{batch}
}}
print(run(weights, batch))
```

With bert_jax, which checks everything first and pads rows to the shapes that there are:

```python
from bert_jax.inference.compiled.run import load_compiled

compiled = load_compiled(".")
print(compiled.shapes)
```

| file | holds |
|---|---|
| `compiled.json` | inputs, outputs, shapes, platforms, versions, and the sha256 of every other file |
| `programs.zip` | a program for each shape, ROWSxTOKENS.jaxexport |
| `weights.safetensors` | the parameters, the first argument of every program |
| `tokenizer.json` and its like | the tokenizer, as transformers has it |

Made with jax {jax}, matrix products in {dtype}. jax reads such programs for at least six months after. No file here
may be changed: `load_compiled` refuses what has another sum.
"""


def _card(name: str, facts: Facts) -> str:
    shape = facts.shapes[0]
    sizes = facts.sizes(*shape)
    filled = {"attention_mask": "ones"}
    lines = [f'    "{s.name}": np.{filled.get(s.name, "zeros")}({s.shape(sizes)}, np.int32),' for s in facts.inputs]
    return _CARD.format(
        name=name,
        task=facts.task,
        platforms=", ".join(facts.platforms),
        weights=WEIGHTS,
        programs=PROGRAMS,
        member=program_name(*shape),
        batch="\n".join(lines),
        jax=facts.jax,
        dtype=facts.dtype,
    )
