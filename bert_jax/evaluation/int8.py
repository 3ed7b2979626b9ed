"""What int8 costs: the float32 and the int8 graph of a folder on the same texts, and on a labelled file of GLUE."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_jax.data.tasks.labelled_text import LabelledText
from bert_jax.data.tasks.published import GLUE, read_glue
from bert_jax.data.tokenizer.layout import graph_inputs
from bert_jax.errors import UserError, quoted
from bert_jax.evaluation import metrics
from bert_jax.evaluation.score import glue_scores

if TYPE_CHECKING:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer

_ROWS = 16


class LoadedGraph(NamedTuple):
    """A graph in onnxruntime and what turns texts into its inputs.

    Attributes:
        session: an onnxruntime.InferenceSession.
        tokenizer: the model's.
        max_length: tokens to which texts are truncated.
        pooling: of an encoder's token vectors: "mean", "cls" or "max".
        labels: names of a classifier's classes.
        prompt: what is put before each text.
        width: how many numbers of a vector are kept, from its first on; None: all.
    """

    session: Any
    tokenizer: "Tokenizer"
    max_length: int
    pooling: str = "mean"
    labels: tuple[str, ...] = ()
    prompt: str = ""
    width: int | None = None


def open_graph(
    path: Path,
    tokenizer: "Tokenizer",
    max_length: int,
    pooling: str,
    labels: tuple[str, ...],
    prompt: str = "",
    width: int | None = None,
) -> LoadedGraph:
    """Loads an ONNX file; `pooling` as in a sentence-transformers folder: for cosines, lengths do not matter."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return LoadedGraph(session, tokenizer, max_length, pooling.partition("+")[0], labels, prompt, width)


def compare_on_texts(whole: LoadedGraph, small: LoadedGraph, texts: Sequence[str]) -> dict[str, float]:
    """How far the outputs of `small` are from those of `whole`.

    Returns:
        For an encoder "mean cosine" and "least cosine" between the two vectors of a text. For scores of classes, tokens
        or positions "same NAME", the share of rows (or of their tokens) with the same best one; for a single score
        "correlation of NAME", Pearson's.
    """
    if not texts:
        raise UserError("no texts to compare int8 with float32 on; expected at least one")
    both: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for (inputs, first), (_, second) in zip(_run(whole, texts), _run(small, texts), strict=True):
        for name in first.keys() - {"pooler_output"}:
            values = [_per_text(name, found[name], inputs["attention_mask"], whole) for found in (first, second)]
            for kept, value in zip(both.setdefault(name, ([], [])), values, strict=True):
                kept.append(value)
    found: dict[str, float] = {}
    for name, parts in both.items():
        first, second = (np.concatenate(part) for part in parts)
        if name == "last_hidden_state":
            cosines = (first * second).sum(axis=1)
            found |= {"mean cosine": float(cosines.mean()), "least cosine": float(cosines.min())}
        elif first.dtype.kind == "f":
            found[f"correlation of {name}"] = metrics.pearson(first, second)
        else:
            found[f"same {name}"] = metrics.accuracy(first, second)
    return found


def labelled_examples(task: str, path: Path) -> list[LabelledText]:
    """The rows of a labelled file of a task of GLUE, by its name in `GLUE`.

    Raises:
        UserError: a file that is not the task's, or one without rows.
    """
    examples = list(read_glue(task, path))
    if not examples:
        raise UserError(f"{path}: has no rows; expected the labelled examples of {task}")
    return examples


def glue_score(graph: LoadedGraph, task: str, examples: Sequence[LabelledText]) -> dict[str, float]:
    """The scores of one graph on the `labelled_examples` of a task of GLUE.

    A classifier is scored by its best class, a model with one score by that, an encoder by the cosine of the two
    vectors of a pair (STS-B).

    Raises:
        UserError: a task that this model cannot do, or one of three classes that it has no names for.
    """
    gold = [example.label for example in examples]
    texts, pairs = [example.text for example in examples], [example.pair or "" for example in examples]
    names, is_pair = GLUE[task].labels, examples[0].pair is not None
    outputs = {node.name for node in graph.session.get_outputs()}
    if "last_hidden_state" in outputs:
        if names or not is_pair:
            raise UserError(f"{task} has classes, and an encoder without a head gives vectors; expected stsb")
        first, second = (_vectors(graph, some) for some in (texts, pairs))
        return glue_scores(task, gold, (first * second).sum(axis=1))
    logits = np.concatenate([found["logits"] for _, found in _run(graph, texts, pairs if is_pair else None)])
    if logits.ndim != 2 or logits.shape[1] != (len(names) or 1):
        raise UserError(f"{task} needs {len(names) or 1} scores for a text; this model gives {list(logits.shape[1:])}")
    if not names:
        return glue_scores(task, gold, logits[:, 0])
    known = _in_glues_words(graph.labels, names, task)
    return glue_scores(task, gold, [known[number] for number in logits.argmax(axis=1)])


def _in_glues_words(labels: Sequence[str], names: Sequence[str], task: str) -> Sequence[str]:
    """A model's classes by GLUE's names, whatever their case; two classes with other names are taken in GLUE's order.

    Three with other names may be in any order, as those of published models for MNLI are: UserError.
    """
    spelt = {name.lower(): name for name in names}
    found = [spelt.get(label.lower(), label) for label in labels]
    if set(found) == set(names):
        return found
    if len(names) > 2:
        shown = ", ".join(map(quoted, labels))
        raise UserError(f"{task}: the model's classes are {shown}; expected {', '.join(names)}, in any order")
    return names


def _run(
    graph: LoadedGraph, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """The inputs and the outputs of some rows at a time, in order."""
    nodes = {node.name: len(node.shape) for node in graph.session.get_inputs()}
    names = [node.name for node in graph.session.get_outputs()]
    for begin in range(0, len(texts), _ROWS):
        some = slice(begin, begin + _ROWS)
        prompted = [graph.prompt + text for text in texts[some]]
        rows = graph.tokenizer(
            prompted, None if pairs is None else pairs[some], padding="longest", max_length=graph.max_length
        )
        inputs = graph_inputs(rows, nodes)
        # Multiple choice: each text is a question with one choice.
        shaped = {name: array[:, None] if nodes[name] == 3 else array for name, array in inputs.items()}
        yield inputs, dict(zip(names, graph.session.run(names, shaped), strict=True))


def _vectors(graph: LoadedGraph, texts: Sequence[str]) -> np.ndarray:
    parts = [
        _per_text("last_hidden_state", found["last_hidden_state"], inputs["attention_mask"], graph)
        for inputs, found in _run(graph, texts)
    ]
    return np.concatenate(parts)


def _per_text(name: str, values: np.ndarray, mask: np.ndarray, graph: LoadedGraph) -> np.ndarray:
    """What is compared of an output: vectors of length one [B, D], best classes int [...], or single scores [B]."""
    if name == "last_hidden_state":
        wide = values.astype(np.float64)  # cosines lie close to 1, where float32 has few digits for what differs
        if graph.pooling == "cls":
            pooled = wide[:, 0]
        elif graph.pooling == "max":
            pooled = np.where(mask[..., None], wide, -np.inf).max(axis=1)
        else:
            pooled = (wide * mask[..., None]).sum(axis=1)
        pooled = pooled[:, : graph.width]
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    if values.shape[-1] == 1:
        return values.reshape(-1)
    if name in ("start_logits", "end_logits"):
        return np.where(mask, values, -np.inf).argmax(axis=1)
    best = values.argmax(axis=-1)
    return best[mask.astype(bool)] if best.ndim == 2 else best
