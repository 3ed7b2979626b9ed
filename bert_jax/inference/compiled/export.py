"""Writes a task's model as programs of jax.export with their weights: a folder that runs without this package."""

import logging
import os
import zipfile
from collections.abc import Callable, Generator, Mapping, Sequence
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
from bert_jax.files import is_of_macos
from bert_jax.formats.load import Loaded
from bert_jax.formats.new_folder import new_folder, refuse_bucket, write_text
from bert_jax.formats.safetensors import write_tensors
from bert_jax.inference import pipeline as pipelines
from bert_jax.inference.compiled import facts as compiled_facts
from bert_jax.inference.compiled.facts import (
    CARD,
    FACTS,
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
from bert_jax.inference.tasks.task_source import longest_row
from bert_jax.model.layers import platform_dtype
from bert_jax.tree import as_numpy, first_not_finite, unflatten

logger = logging.getLogger(__name__)

TASKS: dict[str, Callable[..., TaskModel]] = {task: pipelines.TASKS[task] for task in compiled_facts.TASKS}
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
LENGTHS = (32, 128, 512)
_FILL = "fill-mask"
_FILLED = 8  # masks, and tokens for each


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
    masks: int | None = None,
    top_k: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes a folder with one program for each shape, and the weights once.

    `load_compiled` runs the folder, and so does any program that uses jax. Each program is what the task's pipeline
    compiles for batches without packing, in StableHLO, which JAX promises to read for at least six months
    (https://docs.jax.dev/en/latest/export/export.html). Its arguments are the weights by path and a dict of arrays; it
    returns a dict of arrays. It runs on every platform that it was lowered for, whatever platform it was lowered on.
    The folder is written beside `directory` under a hidden name, read back, and renamed.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned, with the head of the task.
        directory: the folder to write.
        task: a key of `TASKS`.
        lengths: tokens per row; None: 32, 128 and 512, each lowered to the limit of the model if that is less. A
            fine-tuning run, or a folder of sentence-transformers, can have a limit of its own, which then counts.
        batch_sizes: rows per batch; there is one program for each length and batch size.
        platforms: some of `PLATFORMS`.
        dtype: "float32" or "bfloat16", the type of the matrix products' operands. bfloat16 products return float32 on a
            CPU and bfloat16 on an accelerator (`stream_dtype`); a program for both kinds of platform contains both.
        pooling: for embed; see `TextEmbedding`.
        masks: for fill-mask, the number of mask positions per row; None: 8.
        top_k: for fill-mask, the number of tokens per mask; None: 8.
        overwrite: replace `directory` if it is a folder that this function wrote; else it must not exist.
        progress: called with (programs done, total programs) after each.

    Returns:
        The directory.

    Raises:
        UserError: `directory` exists or is in a bucket, an argument has a wrong value, exceeds the limits of the model
            or is of another task, the model does not have the task's head, or a parameter is not finite.
    """
    refuse_bucket(directory)
    target = Path(directory)
    refuse = _refuse_foreign if overwrite else _refuse_taken
    refuse(target)
    platforms = _checked_platforms(platforms, dtype)
    if task not in TASKS:
        raise UserError(f"task {task!r}: expected one of {', '.join(TASKS)}")
    for name, value, needed in (("pooling", pooling, "embed"), ("masks", masks, _FILL), ("top_k", top_k, _FILL)):
        if value is not None and task != needed:
            raise UserError(f"{name}={value!r}: expected only with task {needed}, found task {task}")
    masks, top_k = (_FILLED if value is None else value for value in (masks, top_k))
    options: dict[str, Any] = {"embed": {"pooling": pooling}, "question-answering": {"max_seq_len": ANY_LENGTH}}
    model = TASKS[task](source, dtype=dtype, runtime="xla", **options.get(task, {}))
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
    with new_folder(target, refuse) as folder:
        with zipfile.ZipFile(folder / PROGRAMS, "w", zipfile.ZIP_DEFLATED) as file:
            for number, shape in enumerate(shapes):
                program = _exported(function, weights, facts, shape)
                # ZipInfo's fixed date makes the bytes of equal programs equal.
                member = zipfile.ZipInfo(program_name(*shape))
                file.writestr(member, bytes(program.serialize()), zipfile.ZIP_DEFLATED)
                if progress:
                    progress(number + 1, len(shapes))
        write_tensors(folder / WEIGHTS, weights)
        model.tokenizer.with_max_length(max(tokens for _, tokens in shapes)).save(folder)
        write_text(folder / CARD, _card(target.resolve().name, facts))
        write_facts(folder, replace(facts, files=sums_of(folder)))
        _read_back(folder, weights)
    return target


def _refuse_foreign(target: Path) -> None:
    """Raises UserError unless the folder has the files that `export_compiled` wrote, unchanged, and no others."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not (target / FACTS).is_file():
        raise UserError(f"{target}: already exists and is no folder of export-compiled; name another folder")
    try:
        files = {*read_facts(target).files, FACTS}
        others = (path for path in target.iterdir() if path.name not in files and not is_of_macos(path.name))
        found = [f"{path}: is not of that export" for path in others]
    except UserError as error:
        found = [str(error).rsplit(";", 1)[0]]
    if found:
        raise UserError(f"{found[0]}; only an unchanged export is replaced: name another folder, or remove {target}")


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise UserError(f"{target}: already exists; remove it or name another folder")


def _checked_platforms(platforms: Sequence[str], dtype: str) -> tuple[str, ...]:
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"dtype={dtype!r}: expected float32 or bfloat16")
    wrong = [name for name in platforms if name not in PLATFORMS]
    if wrong or not platforms:
        raise UserError(f"platforms={','.join(platforms)}: expected some of {', '.join(PLATFORMS)}")
    return tuple(sorted(set(platforms)))


def _shapes(model: TaskModel, lengths: Sequence[int] | None, batch_sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The shapes (rows, tokens), sorted by rows, then tokens."""
    longest = min(model.longest, model.settled.get("max_length") or model.longest)
    if lengths is None:
        lengths = sorted({min(length, longest) for length in LENGTHS})
    shortest = model.tokenizer.special_tokens_added(pair=False)
    for length in lengths:
        if not shortest <= length <= longest:
            is_own = longest == longest_row(model.config, model.tokenizer)
            whose = "model" if is_own else "folder" if isinstance(model, TextEmbedding) else "fine-tuning run"
            raise UserError(f"lengths: {length}; expected {shortest} to {longest} tokens, the limits of the {whose}")
    for size in batch_sizes:
        if size < 1:
            raise UserError(f"batch_sizes: {size}; expected at least 1")
    if not lengths or not batch_sizes:
        raise UserError("lengths and batch_sizes: found an empty list; expected at least one of each")
    return tuple(sorted({(size, length) for size in batch_sizes for length in lengths}))


def _specs(task: str, model: TaskModel, masks: int, top_k: int) -> tuple[tuple[ArraySpec, ...], tuple[ArraySpec, ...]]:
    """The programs' inputs and outputs; the outputs are in the order of `TaskModel.apply`."""
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
        assert isinstance(model, TextEmbedding)
        found = [("embeddings", "float32", (ROWS, model.width))]
    return tuple(inputs), tuple(ArraySpec(*one) for one in found)


def _beside(task: str, model: TaskModel, masks: int) -> dict[str, Any]:
    """The `Facts` of a task that are needed to interpret its outputs."""
    if task == "embed":
        assert isinstance(model, TextEmbedding)
        if model.prompt:
            logger.warning("the programs do not have the prompt %r: put it before each text", model.prompt)
        return {"pooling": model.pooling}
    if task == "fill-mask":
        return {"masks": masks, "mask_token_id": model.tokenizer.mask_token_id}
    if task == "question-answering":
        return {}
    problem = {"problem_type": model.config.problem_type} if task == "text-classification" else {}
    return {"labels": tuple(model.config.labels), **problem}


def _weights(model: TaskModel) -> dict[str, np.ndarray]:
    flat = as_numpy(jax.device_get(model.engine.programs.params))
    if (path := first_not_finite(flat.items())) is not None:
        raise UserError(f"{model.source}: {path} has values that are not finite; expected finite weights")
    return flat


def _function(
    task: str, model: TaskModel, outputs: Sequence[ArraySpec], platforms: Sequence[str]
) -> Callable[..., dict[str, jax.Array]]:
    """`model.apply` as a function from weights by path and a batch to a dict, of the same types on all platforms."""
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
def _no_call_stacks() -> Generator[None]:
    """Leaves source locations out of programs.

    Otherwise programs would record the paths of this package and of its caller, and equal models would make different
    programs.
    """
    options = {"jax_hlo_source_file_canonicalization_regex": ".*", "jax_include_full_tracebacks_in_locations": False}
    before = {name: jax.config.values[name] for name in options}
    try:
        for name, value in options.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _read_back(folder: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Reads the folder as a user would, and compares it with what was written; it need not be able to run here."""
    facts = read_facts(folder)
    written = read_weights(folder, read_programs(folder, facts).values())
    if any(written[path].tobytes() != array.tobytes() for path, array in weights.items()):
        raise UserError(f"{folder / WEIGHTS}: reads back with other bytes than were written; check the disk")
    if Tokenizer.load(folder).fingerprint != facts.tokenizer:
        raise UserError(f"{folder}: the tokenizer's files read back as a different tokenizer; check the disk")


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

With bert_jax, which first checks all files, and pads rows to the available shapes:

```python
from bert_jax.inference.compiled.run import load_compiled

compiled = load_compiled(".")
print(compiled.shapes)
```

| file | contains |
|---|---|
| `compiled.json` | inputs, outputs, shapes, platforms, versions, and the sha256 of every other file |
| `programs.zip` | one program for each shape, ROWSxTOKENS.jaxexport |
| `weights.safetensors` | the parameters, the first argument of every program |
| `tokenizer.json` and others | the tokenizer, in transformers' format |

Made with jax {jax}, matrix products in {dtype}. jax can read such programs for at least six months. Do not change any
file: `load_compiled` refuses files that do not match their sha256.
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
