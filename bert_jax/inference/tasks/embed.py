"""embed: computes a vector for each text, pooled as its folder says (modules.json); similar: the nearest texts."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.config import MODEL_TYPES, BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.onnx.encoder import first_position, pool
from bert_jax.formats.onnx.graph import FLOAT, Graph
from bert_jax.formats.onnx.model import ROWS
from bert_jax.formats.sentence_transformers import NORMALIZED, POOLINGS, Vectors, check_pooling, vectors_of
from bert_jax.formats.source import Source, open_source
from bert_jax.inference.tasks.task_model import EncodedItems, Running, TaskModel, model_inputs
from bert_jax.inference.tasks.task_source import check_count, check_text, items_of

logger = logging.getLogger(__name__)

POOLED = "pooled"  # the pooler's output; sentence-transformers has no such pooling
DEFAULT_POOLING = "mean" + NORMALIZED
_BLOCK = 1 << 24  # scores in memory at a time
_PACKABLE = ("mean", "mean_sqrt_len_tokens", "cls")


class TextEmbedding(TaskModel):
    """Computes vectors of texts.

    Texts that are too long are truncated at the end, to the length in the folder's sentence_bert_config.json or that of
    the model; a warning gives their number. The empty text gets the vector of [CLS] [SEP]. What else the folder's files
    say is done as sentence-transformers does it: `do_lower_case`, the default prompt, `truncate_dim`.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned (then "the folder" is the one that it read,
            if that still exists); with any head.
        pooling: "mean" over the tokens, "cls" (the first token's vector), "max", "mean_sqrt_len_tokens", or "pooled"
            (the pooler's output for the first token); add "+normalize" for vectors of length one, after
            `truncate_dim`. None: what the folder's modules.json says (its Normalize is before), else "mean+normalize".
        packing: texts share rows of 128 or more tokens, and each attends only to itself; None: if the pooling allows
            it.
        max_length: the most tokens of a text; None: as the folder says, else the model's limit.
        prompt: put before each text, such as "query: "; None: the folder's default prompt, if it has one.
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.

    Attributes:
        pooling: the pooling in use.
        prompts: the folder's prompts by name, among them "query" and "document" ("" if it has none).
        similarity: how its vectors are compared, "cosine" unless the folder says otherwise.
    """

    task = "embed"

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        pooling: str | None = None,
        packing: bool | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
        **running: Unpack[Running],
    ):
        found = source if isinstance(source, Loaded) else open_source(source).best()
        folder = _folder_of(found)
        vectors = _vectors(folder, pooling)
        self.pooling = vectors.pooling
        check_pooling(self.pooling, (*POOLINGS, POOLED))
        kind = self.pooling.removesuffix(NORMALIZED)
        if packing and kind not in _PACKABLE:
            raise UserError(f"packing: pooling is {self.pooling!r}; expected one of {', '.join(_PACKABLE)}")
        self.prompts, self._pools_prompts = vectors.prompts, vectors.include_prompt
        self._truncate_dim, self.similarity = vectors.truncate_dim, vectors.similarity
        self.scales_last = pooling is not None  # as encode(normalize_embeddings=True) does
        self._given_prompt = prompt
        by_default = vectors.prompt if self._pools_prompts else ""
        if by_default != vectors.prompt and prompt is None:
            logger.warning(
                "%s: its default prompt %r is not put before texts, because its pooling leaves the prompt's tokens out "
                "(include_prompt false), which bert_jax cannot: the vectors are those of the texts without a prompt",
                folder,
                vectors.prompt,
            )
        max_length = vectors.max_length if max_length is None else max_length
        if max_length is not None:
            check_count("max_length", max_length)
            self.longest = max_length
        self.task = "embed-pooled" if kind == POOLED else "embed"
        self.packing = kind in _PACKABLE if packing is None else packing
        super().__init__(found, **running)
        if kind == POOLED and not self.config.has_pooler:
            raise UserError(
                f"{self.source}: the model has no pooler, which pooling={self.pooling!r} needs: no "
                f"{MODEL_TYPES[self.config.model_type].title} has one; expected one of {', '.join(POOLINGS)}"
            )
        if vectors.lower_case:
            self.tokenizer = self.tokenizer.lower_cased()
        self.settle(prompt=by_default if prompt is None else prompt)

    @property
    def width(self) -> int:
        """D, the length of a vector: the model's, or the folder's `truncate_dim`."""
        return min(self.config.hidden_size, self._truncate_dim or self.config.hidden_size)

    @property
    def prompt(self) -> str:
        """What is put before each text, unless a call has a prompt of its own."""
        return self.settled["prompt"]

    @property
    def search_prompts(self) -> tuple[str, str]:
        """What stands before queries, and before the texts that are searched.

        The folder's prompts "query" and "document" (or "passage", or "corpus"), as in sentence-transformers'
        `encode_query` and `encode_document`; `prompt` for both if the folder has neither or the class was given one.
        """
        names = ("document", "passage", "corpus")
        query, document = self.prompts["query"], next((found for one in names if (found := self.prompts.get(one))), "")
        if self._given_prompt is not None or not self._pools_prompts or not (query or document):
            return self.prompt, self.prompt
        return query, document

    def check_options(self, *, prompt: str) -> None:
        if not isinstance(prompt, str):
            raise UserError(f"prompt={prompt!r:.40}: expected a text, such as 'query: '")
        check_text(prompt, "prompt")
        if prompt and not self._pools_prompts:
            raise UserError(
                f"prompt: the pooling of {self.source} leaves the prompt's tokens out (include_prompt false), which "
                "bert_jax cannot"
            )

    def __call__(self, texts: str | Sequence[str], *, prompt: str | None = None) -> np.ndarray:
        """Computes the vectors of texts.

        Args:
            texts: a text, or a list of them.
            prompt: put before each text; None: `prompt` of the class.

        Returns:
            float32 [D] for a text; [N, D], in order, for a list.
        """
        single = isinstance(texts, str)
        vectors = list(self.stream([texts] if single else items_of(texts), prompt=prompt))
        return vectors[0] if single else np.array(vectors, np.float32).reshape(-1, self.width)

    def encode(self, items: list[str], first: int, *, prompt: str) -> EncodedItems:
        texts = [check_text(text, f"text {first + number + 1}") for number, text in enumerate(items)]
        return EncodedItems(items, *self.encode_pairs([(prompt + text, None) for text in texts]))

    def results(self, facts: list[str], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[np.ndarray]:
        return [vector_D for (vector_D,) in outputs]

    def outputs(self, g: Graph, config: BertConfig, x: str, *, packed: bool, **options: Any) -> None:
        kind = self.pooling.removesuffix(NORMALIZED)
        if kind == POOLED:
            found = pool(g, x, "pooler")
        elif packed:
            found = pooled_sequences_in(g, x, kind)
        else:
            found = pooled_in(g, x, kind)
        is_cut = self.width < config.hidden_size
        if is_cut and self.scales_last:
            found = g.op("Slice", found, [0], [self.width], [-1])
        if self.pooling.endswith(NORMALIZED):
            g.scope("normalized")
            lengths = g.op("ReduceL2", found, axes=[-1], keepdims=1)
            found = g.op("Div", found, g.op("Max", lengths, 1e-12))
        if is_cut and not self.scales_last:
            found = g.op("Slice", found, [0], [self.width], [-1])
        g.output("vectors", found, [ROWS, *([SEQUENCES] if packed else []), self.width])

    def apply(self, params: Any, batch: Mapping[str, Array], **options: Any) -> tuple[Array]:
        """Returns float32 [B, `width`]; for a packed batch [B, K, `width`]."""
        output: Any = self._model.apply({"params": params}, **model_inputs(self.config, batch))
        kind = self.pooling.removesuffix(NORMALIZED)
        if kind == POOLED:
            vectors = output.pooler_output
        elif "sequence_ids" in batch:
            vectors = pooled_sequences(output.last_hidden_state, batch["sequence_ids"], batch["starts"], kind)
        else:
            vectors = pooled(output.last_hidden_state, batch["attention_mask"], kind)
        vectors = vectors.astype(jnp.float32)
        if self.scales_last:
            vectors = vectors[..., : self.width]
        vectors = normalized(vectors) if self.pooling.endswith(NORMALIZED) else vectors
        return (vectors[..., : self.width],)


def _folder_of(source: Source | Loaded) -> Path | None:
    """The folder that says how the model pools; None for a loaded model whose folder is gone."""
    if isinstance(source, Source):
        return source.folder
    return Path(source.report.source) if Path(source.report.source).is_dir() else None


def _vectors(folder: Path | None, pooling: str | None) -> Vectors:
    """What the folder says; the default where it says nothing."""
    if folder is None:
        return Vectors(pooling or DEFAULT_POOLING)
    found = vectors_of(folder, pooling) or vectors_of(folder, DEFAULT_POOLING)
    assert found is not None
    return found


def pooled(x_BLD: Array, mask_BL: Array, kind: str) -> Array:
    """Pools each row to one vector, [B, D], over the positions where the mask is 1.

    The kinds are those of sentence-transformers' `Pooling`: "mean", "cls", "max", "mean_sqrt_len_tokens" (the sum
    divided by the square root of the number of tokens).
    """
    if kind == "cls":
        return x_BLD[:, 0]
    if kind == "max":
        return jnp.where(mask_BL[..., None] > 0, x_BLD, -jnp.inf).max(axis=1)
    weights_BL = mask_BL.astype(jnp.float32)
    sums_BD = jnp.einsum("BL,BLD->BD", weights_BL, x_BLD.astype(jnp.float32))
    return sums_BD / _divisor(weights_BL.sum(axis=1), kind)[:, None]


def pooled_sequences(x_BLD: Array, of_BL: Array, starts_BK: Array, kind: str) -> Array:
    """Pools each sequence of packed rows to one vector, [B, K, D]. Unused places get finite values without meaning.

    Args:
        x_BLD: hidden states.
        of_BL: the sequence of each token, 1, 2 … in each row; 0 is padding.
        starts_BK: the position where each sequence begins.
        kind: "mean", "mean_sqrt_len_tokens" or "cls".
    """
    if kind == "cls":
        return jnp.take_along_axis(x_BLD, starts_BK[..., None], axis=1)
    numbers_1K1 = 1 + jnp.arange(starts_BK.shape[1])[None, :, None]
    weights_BKL = (of_BL[:, None, :] == numbers_1K1).astype(jnp.float32)
    sums_BKD = jnp.einsum("BKL,BLD->BKD", weights_BKL, x_BLD.astype(jnp.float32))
    return sums_BKD / _divisor(jnp.maximum(weights_BKL.sum(axis=2), 1), kind)[..., None]


SEQUENCES = "sequences"  # the axis K of packed outputs


def pooled_in(g: Graph, x: str, kind: str) -> str:
    """`pooled` of the hidden states `x`, in a graph that has attention_mask."""
    if kind == "cls":
        return first_position(g, x, "pooling")
    g.scope("pooling")
    mask = g.op("Cast", "attention_mask", to=FLOAT)
    if kind == "max":
        least = float(np.finfo(np.float32).min)
        is_token = g.op("Unsqueeze", g.op("Greater", mask, 0.0), [2])
        return g.op("ReduceMax", g.op("Where", is_token, x, least), axes=[1], keepdims=0)
    sums = g.op("Squeeze", g.op("MatMul", g.op("Unsqueeze", mask, [1]), x), [1])
    return g.op("Div", sums, _divisor_in(g, g.op("ReduceSum", mask, [1], keepdims=1), kind))


def pooled_sequences_in(g: Graph, x: str, kind: str) -> str:
    """`pooled_sequences` of the hidden states `x`, in a graph that has sequence_ids; adds the input starts."""
    g.scope("pooling")
    starts = g.input("starts", [ROWS, SEQUENCES])
    if kind == "cls":
        return g.op("GatherND", x, g.op("Unsqueeze", starts, [2]), batch_dims=1)
    count = g.op("Squeeze", g.op("Shape", starts, start=1, end=2), [0])
    numbers = g.op("Unsqueeze", g.op("Range", 1, g.op("Add", count, 1), 1), [1])
    weights = g.op("Cast", g.op("Equal", g.op("Unsqueeze", "sequence_ids", [1]), numbers), to=FLOAT)
    counts = g.op("Max", g.op("ReduceSum", weights, [2], keepdims=1), 1.0)
    return g.op("Div", g.op("MatMul", weights, x), _divisor_in(g, counts, kind))


def _divisor_in(g: Graph, counts: str, kind: str) -> str:
    return g.op("Sqrt", counts) if kind == "mean_sqrt_len_tokens" else counts


def normalized(vectors: Array) -> Array:
    """Scales vectors to length one; zero stays zero, as in `torch.nn.functional.normalize`."""
    lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / jnp.maximum(lengths, 1e-12)


def _divisor(counts: Array, kind: str) -> Array:
    return jnp.sqrt(counts) if kind == "mean_sqrt_len_tokens" else counts


def vectors_or_nan(embed: Any, texts: Sequence[Any], *, prompt: str | None = None) -> np.ndarray:
    """The vectors of a `TextEmbedding`, float32 [N, D], with a row of NaN for a UserError or a text that fails."""
    missing = np.full(embed.width, np.nan, np.float32)
    found = embed.stream(texts, on_error="return", prompt=prompt)
    return np.array([missing if isinstance(one, UserError) else one for one in found]).reshape(-1, embed.width)


def similar(
    embed: Any,
    queries: Sequence[Any],
    corpus: Sequence[Any],
    top_k: int = 5,
    *,
    query_prompt: str | None = None,
    text_prompt: str | None = None,
    similarity: str | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Yields for each query its nearest texts, under the keys of sentence-transformers' `semantic_search`.

    Args:
        embed: a `TextEmbedding`, or any function from a list of texts to vectors [N, D].
        queries, corpus: texts.
        top_k: the number of texts per query.
        query_prompt, text_prompt: put before each query, and before each text of the corpus; None: the model's
            `search_prompts`, for another function nothing. Else `embed` must take `prompt=`, as a `TextEmbedding` does.
        similarity: "cosine" or "dot"; None: the model's, for another function "cosine".

    Yields:
        For each query a list of dicts, nearest first: `corpus_id` (int), `score` (float, the cosine or the dot
        product), `text`. Texts whose vector is NaN are left out.

    Raises:
        UserError: `top_k` is below 1, the corpus is empty, or the similarity is neither of the two.
    """
    similarity = getattr(embed, "similarity", "cosine") if similarity is None else similarity
    if similarity not in ("cosine", "dot"):
        raise UserError(f"the model's vectors are compared by {similarity!r}; similar knows cosine and dot")
    own = getattr(embed, "search_prompts", (None, None))
    prompts = [of if given is None else given for of, given in zip(own, (query_prompt, text_prompt), strict=True)]
    check_count("top_k", top_k)
    queries, corpus = items_of(queries, "a list of queries"), items_of(corpus, "a list of texts as the corpus")
    if not corpus:
        raise UserError("the corpus has no texts; expected at least one")
    of_queries, of_corpus = (
        embed(texts) if prompt is None else embed(texts, prompt=prompt)
        for texts, prompt in zip((queries, corpus), prompts, strict=True)
    )
    scores, rows = nearest(of_queries, of_corpus, top_k, scaled=similarity == "cosine")
    for own_scores, own_rows in zip(scores.tolist(), rows.tolist(), strict=True):
        yield [
            {"corpus_id": row, "score": score, "text": corpus[row]}
            for row, score in zip(own_rows, own_scores, strict=True)
            if score > -np.inf
        ]


def nearest(
    queries_QD: np.ndarray, corpus_ND: np.ndarray, top_k: int, *, scaled: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `top_k` corpus rows with the greatest score for each query, greatest first; ties by row number.

    Args:
        queries_QD, corpus_ND: vectors of any length but zero, float32. Corpus rows of NaN come last.
        top_k: k; a value above N counts as N.
        scaled: the score is the cosine; False: the dot product.

    Returns:
        The scores, float32 [Q, k], and the row numbers, int64 [Q, k]. The score of a row of NaN is -inf.
    """
    top_k = min(top_k, len(corpus_ND))
    if scaled:
        queries_QD, corpus_ND = of_length_one(queries_QD), of_length_one(corpus_ND)
    scores = np.zeros((len(queries_QD), top_k), np.float32)
    rows = np.zeros((len(queries_QD), top_k), np.int64)
    step = max(1, _BLOCK // max(len(corpus_ND), 1))
    for begin in range(0, len(queries_QD) if top_k else 0, step):
        some_QN = queries_QD[begin : begin + step] @ corpus_ND.T
        some_QN = np.where(np.isnan(some_QN), -np.inf, some_QN)
        bound_Q1 = -np.partition(-some_QN, top_k - 1, axis=1)[:, top_k - 1 : top_k]
        for query, (found_N, bound) in enumerate(zip(some_QN, bound_Q1[:, 0], strict=True), begin):
            candidates = np.flatnonzero(found_N >= bound)
            best = candidates[np.lexsort((candidates, -found_N[candidates]))[:top_k]]
            scores[query], rows[query] = found_N[best], best
    return scores, rows


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """Vectors [N, D] scaled to length one; zero stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
