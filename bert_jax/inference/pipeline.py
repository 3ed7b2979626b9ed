"""`pipeline(task, source)(texts)` turns texts into plain Python results, under transformers' keys."""

import os
import re
from collections.abc import Callable
from inspect import signature
from typing import Any, Literal, overload

from bert_jax.errors import UserError, did_you_mean
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.fill_mask import FillMask
from bert_jax.inference.tasks.likelihood import Likelihood
from bert_jax.inference.tasks.multiple_choice import MultipleChoice
from bert_jax.inference.tasks.next_sentence import NextSentence
from bert_jax.inference.tasks.question_answering import QuestionAnswering
from bert_jax.inference.tasks.summarise import Summarise
from bert_jax.inference.tasks.task_model import Running
from bert_jax.inference.tasks.text_classification import TextClassification
from bert_jax.inference.tasks.token_classification import TokenClassification

TASKS: dict[str, Callable[..., Any]] = {
    "embed": TextEmbedding,
    "fill-mask": FillMask,
    "text-classification": TextClassification,
    "token-classification": TokenClassification,
    "likelihood": Likelihood,
    "next-sentence": NextSentence,
    "question-answering": QuestionAnswering,
    "summarise": Summarise,
    "multiple-choice": MultipleChoice,
}


_IN_TRANSFORMERS = {
    "ner": "token-classification",
    "sentiment-analysis": "text-classification",
    "feature-extraction": "embed",
    "sentence-similarity": "embed",
    "summarization": "summarise",
    "next-sentence-prediction": "next-sentence",
}

# Options there, and of sentence-transformers -> what does the same here.
_OPTIONS_THERE = {
    "tokenizer": "the tokenizer is read from source=",
    "device": "say devices=jax.devices()[:1], or set the environment variable JAX_PLATFORMS=cpu",
    "device_map": "all devices of the process are used; devices= chooses some",
    "torch_dtype": "say dtype='bfloat16' or 'float32'",
    "model_kwargs": "say dtype='bfloat16' or 'float32'",
    "backend": "say runtime='xla', 'openvino' or 'onnxruntime'",
    "framework": "say runtime='xla', 'openvino' or 'onnxruntime'",
    "revision": "say source='ORG/NAME@REVISION'",
    "return_all_scores": "say top_k=None",
    "grouped_entities": "say aggregation_strategy='simple'",
    "max_seq_length": "say max_length=",
    "normalize_embeddings": "say pooling='mean+normalize', or another pooling with +normalize",
    "prompts": "say prompt='TEXT', or give a call its own",
    "prompt_name": "say prompt='TEXT'; the folder's are in the attribute prompts of what this returns",
    "truncate_dim": "cut the vectors: vectors[:, :N]",
    "precision": "vectors are float32",
}


_Source = str | os.PathLike[str] | Loaded | None


# For editors and type checkers: what each task returns.
@overload
def pipeline(task: Literal["embed"], source: _Source = None, **options: Any) -> TextEmbedding: ...
@overload
def pipeline(task: Literal["fill-mask"], source: _Source = None, **options: Any) -> FillMask: ...
@overload
def pipeline(task: Literal["text-classification"], source: _Source = None, **options: Any) -> TextClassification: ...
@overload
def pipeline(task: Literal["token-classification"], source: _Source = None, **options: Any) -> TokenClassification: ...
@overload
def pipeline(task: Literal["likelihood"], source: _Source = None, **options: Any) -> Likelihood: ...
@overload
def pipeline(task: Literal["next-sentence"], source: _Source = None, **options: Any) -> NextSentence: ...
@overload
def pipeline(task: Literal["question-answering"], source: _Source = None, **options: Any) -> QuestionAnswering: ...
@overload
def pipeline(task: Literal["summarise"], source: _Source = None, **options: Any) -> Summarise: ...
@overload
def pipeline(task: Literal["multiple-choice"], source: _Source = None, **options: Any) -> MultipleChoice: ...
@overload
def pipeline(task: str, source: _Source = None, **options: Any) -> Any: ...
def pipeline(task: str, source: _Source = None, **options: Any) -> Any:
    """Loads a model for a task. A shape is compiled when it first occurs.

    Args:
        task: a key of `TASKS`.
        source: a run directory, a Hugging Face folder, a hub id, or what `load` returned; required.
        **options: the options of the task's class.

    Returns:
        `predict(texts, ...)`: returns one result for a text and a list for a list; see the class's `__call__`.

    Raises:
        FileNotFoundError, UserError: as `load`.
        UserError: the task or an option is unknown, or the model does not have the task's head.
    """
    if not isinstance(task, str):
        raise UserError(f"task {task!r}: expected one of {', '.join(TASKS)}")
    if task in _IN_TRANSFORMERS:
        raise UserError(f"task {task!r}: is called {_IN_TRANSFORMERS[task]!r} here")
    if task == "zero-shot-classification":
        raise UserError(f"task {task!r}: there is none; fine-tune a model for your labels: 'text-classification'")
    if task not in TASKS:
        raise UserError(f"task {task!r}" + (did_you_mean(task, TASKS) or f": expected one of {', '.join(TASKS)}"))
    if source is None:
        instead = " in place of model=" if "model" in options else ""
        raise UserError(f"{task} needs a model: say source={instead}, a run directory, a folder or a hub id")
    known = [name for name in signature(TASKS[task]).parameters if name not in ("source", "running")]
    known += Running.__annotations__
    if unknown := [name for name in options if name not in known]:
        there = _OPTIONS_THERE.get(unknown[0], "")
        ours = re.match(r"say (\w+)=", there)
        if ours and ours[1] not in (*known, "source"):  # of another task
            there = ""
        near = f"; {there}" if there else did_you_mean(unknown[0], known)
        near = near or f"; expected some of {', '.join(known)}"
        raise UserError(f"{task} has no option {unknown[0]!r}{near}")
    return TASKS[task](source, **options)
