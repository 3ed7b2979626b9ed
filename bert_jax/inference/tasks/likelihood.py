"""likelihood: scores a text with a masked model that predicts each of its tokens in turn from all others."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.onnx.graph import Graph
from bert_jax.formats.onnx.model import ROWS, vocabulary
from bert_jax.inference.tasks.task_model import EncodedItems, Results, Running, TaskModel, model_inputs
from bert_jax.inference.tasks.task_source import check_text, items_of, shortened


class Hidden(NamedTuple):
    """The n rows of a text: copies of it in which different tokens are masked.

    Attributes:
        ids: int32 [L], the text's tokens, including special ones.
        positions: int32 [n], the token that each row predicts.
        ends: int32 [n]: each row masks the tokens from its position up to here, exclusive.
    """

    ids: np.ndarray
    positions: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True, kw_only=True)
class HiddenRows(Encoded):
    """R rows with masked tokens. Rows are built with their batch, so n rows of a text take the memory of one.

    Attributes:
        tokens: the tokens of the texts, each text once, concatenated; `row_lengths` int64 [R] counts those of the rows.
        targets: mlm_positions int32 [R, 1], and labels int32 [R, 1], the original ids there.
        begins: int64 [R], where in `tokens` the text of each row begins.
        ends: int32 [R], where in each row the masked tokens end, exclusive.
        mask_id: the id of the mask token.
    """

    begins: np.ndarray
    ends: np.ndarray
    mask_id: int

    def batch(self, plan: BatchPlan) -> dict[str, np.ndarray]:
        numbers = plan.examples
        column_L = np.arange(plan.length)
        real_BL = column_L < self.row_lengths[numbers, None]
        source_BL = np.where(real_BL, self.begins[numbers, None] + column_L, 0)
        found = {
            name: np.where(real_BL, values[source_BL], self.pads[name]).astype(np.int32)
            for name, values in self.tokens.items()
        }
        hidden_BL = (column_L >= self.targets["mlm_positions"][numbers]) & (column_L < self.ends[numbers, None])
        found["input_ids"][hidden_BL] = self.mask_id
        return found | {
            "attention_mask": real_BL.astype(np.int32),
            **{name: values[numbers] for name, values in self.targets.items()},
            "weights": plan.counts.astype(np.float32),
        }

    def only_row(self, length: int) -> dict[str, np.ndarray]:
        found = self.batch(BatchPlan(np.zeros(1, np.int64), np.ones(1, bool), length))
        del found["weights"]
        return found


def hidden_rows(texts: list[Hidden], *, pad_id: int, mask_id: int) -> HiddenRows:
    """Builds the rows of several texts, in the order of the texts and of their positions."""
    counts = np.array([len(text.positions) for text in texts], np.int64)
    lengths = np.array([len(text.ids) for text in texts], np.int64)
    ids = _joined([text.ids for text in texts])
    begins = np.repeat(np.cumsum(lengths) - lengths, counts)
    positions = _joined([text.positions for text in texts])
    return HiddenRows(
        {"input_ids": ids, "token_type_ids": np.zeros_like(ids)},
        {"input_ids": pad_id, "token_type_ids": 0},
        np.repeat(lengths, counts),
        {"mlm_positions": positions[:, None], "labels": ids[begins + positions][:, None]},
        begins=begins,
        ends=_joined([text.ends for text in texts]),
        mask_id=mask_id,
    )


def token_scores(g: Graph, config: BertConfig, x: str) -> str:
    """The scores of all tokens at mlm_positions, which becomes an input: hidden states [B, L, D] -> [B, P, V]."""
    positions = g.input("mlm_positions", [ROWS, "positions"])
    g.scope("mlm_head")
    return vocabulary(g, config, g.op("GatherND", x, g.op("Unsqueeze", positions, [2]), batch_dims=1))


def ends_of_words(word_ids: np.ndarray) -> np.ndarray:
    """For each token the end of its word, exclusive, int32 [L]; a word is a run of equal numbers in `word_ids` [L]."""
    last = np.flatnonzero(np.append(word_ids[1:] != word_ids[:-1], True)) if len(word_ids) else word_ids
    return (last[np.searchsorted(last, np.arange(len(word_ids)))] + 1).astype(np.int32)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int32)


_LARGEST = 709.0  # the largest whole number whose exponential is a finite float


class Likelihood(TaskModel):
    """Computes the pseudo-log-likelihood: the sum of log P(token | all others), in nats, over the tokens of a text.

    https://arxiv.org/abs/1910.14659. A text of n tokens becomes n rows, each with another token masked. Special tokens
    are not scored, neither those that the tokenizer adds nor "[SEP]" within a text; [UNK] is. The probabilities are
    over the tokenizer's vocabulary, without the rows that pad the embedding table.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned (head "pretraining" or "mlm").
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.

    Raises:
        UserError: the model is a decoder.
    """

    task = "likelihood"

    def __init__(self, source: "str | os.PathLike[str] | Loaded", **running: Unpack[Running]):
        super().__init__(source, **running)
        if self.config.is_decoder:
            raise UserError(f"{self.source}: is a decoder; likelihood needs a masked model, which sees later tokens")
        self._mask_id, self._pad_id = self.tokenizer.mask_token_id, self.tokenizer.pad_token_id
        unknown = self.tokenizer.unk_token_id if self.tokenizer.has_special("unk") else None
        self.settle(per_token=False, within_word_l2r=False)
        self._not_asked = [i for i in self.tokenizer.all_special_ids if i != unknown]

    def __call__(
        self, texts: str | Sequence[str], *, per_token: bool = False, within_word_l2r: bool = False
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Scores texts.

        Args:
            texts: a text, or a list of them.
            per_token: add the log-probability of each token.
            within_word_l2r: with each token, also mask the later tokens of the same word. Otherwise a word's other
                tokens make each of its tokens too easy to predict (https://arxiv.org/abs/2305.10588).

        Returns:
            For each text a dict: `pll` (float, nats), `tokens` (n, the number of scored tokens), `pppl` (exp(-pll / n),
            the pseudo-perplexity; for several texts use exp(-sum of pll / sum of tokens)); with `per_token` also
            `per_token`, a list of {`token`, `log_probability`}.

        Raises:
            UserError: a text has no token to score (it is empty, for example), or is too long for the model.
        """
        single = isinstance(texts, str)
        options: dict[str, Any] = {"per_token": per_token, "within_word_l2r": within_word_l2r}
        results = Results(self.stream([texts] if single else items_of(texts), **options))
        return results[0] if single else results

    def encode(self, items: list[str], first: int, *, within_word_l2r: bool, **options: Any) -> EncodedItems:
        names = [f"text {first + number + 1}" for number in range(len(items))]
        for text, name in zip(items, names, strict=True):
            check_text(text, name)
        lengths = self.tokenizer.encode_flat(items)[1] + self.tokenizer.special_tokens_added(pair=False)
        for text, name, length in zip(items, names, lengths.tolist(), strict=True):
            if length > self.longest:
                raise UserError(
                    f"{name} ({shortened(text)}) has {length} tokens; "
                    f"the model takes at most {self.longest}: shorten it"
                )
        facts = []
        for text, name, hidden in zip(items, names, self._hidden(items, within_word_l2r), strict=True):
            if not len(hidden.positions):
                raise UserError(f"{name} ({shortened(text)}) has only special tokens; expected others to score")
            facts.append(hidden)
        return EncodedItems(facts, hidden_rows(facts, pad_id=self._pad_id, mask_id=self._mask_id))

    def apply(self, params: Any, batch: Mapping[str, jax.Array], **options: Any) -> tuple[jax.Array]:
        """Returns the log-probabilities of the labels, float32 [B, 1]."""
        inputs = model_inputs(self.config, batch)
        output: Any = self._model.apply({"params": params}, **inputs, mlm_positions=batch["mlm_positions"])
        logits_B1V = output.prediction_logits[..., : self.tokenizer.vocab_size].astype(jnp.float32)
        label_B1 = jnp.take_along_axis(logits_B1V, batch["labels"][..., None], axis=-1)[..., 0]
        return (label_B1 - jax.nn.logsumexp(logits_B1V, axis=-1),)

    def outputs(self, g: Graph, config: BertConfig, x: str, *, packed: bool, **options: Any) -> None:
        scores = token_scores(g, config, x)
        known = g.op("Slice", scores, [0], [self.tokenizer.vocab_size], [2])
        label = g.op("Unsqueeze", g.input("labels", [ROWS, "positions"]), [2])
        found = g.op("GatherElements", g.op("LogSoftmax", known, axis=2), label, axis=2)
        g.output("log_probabilities", g.op("Squeeze", found, [2]), [ROWS, "positions"])

    def beside_tokens(self, **options: Any) -> dict[str, tuple[int, ...]]:
        return {"mlm_positions": (1,), "labels": (1,)}

    def results(self, facts: list[Hidden], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        found, begin = [], 0
        for hidden in facts:
            rows = outputs[begin : begin + len(hidden.positions)]
            begin += len(rows)
            found.append(self._describe(hidden, [float(row[0]) for (row,) in rows], options["per_token"]))
        return found

    def _hidden(self, texts: list[str], within_word_l2r: bool) -> list[Hidden]:
        rows = self.tokenizer(
            texts,
            padding="longest",
            truncation="none",
            max_length=self.longest,
            return_special_tokens_mask=True,
            return_word_ids=within_word_l2r,
        )
        asked_BL = (rows["special_tokens_mask"] == 0) & ~np.isin(rows["input_ids"], self._not_asked)
        found = []
        for row, length in enumerate(rows["attention_mask"].sum(axis=1)):
            positions = np.flatnonzero(asked_BL[row]).astype(np.int32)
            ends = ends_of_words(rows["word_ids"][row])[positions] if within_word_l2r else positions + 1
            found.append(Hidden(rows["input_ids"][row, :length], positions, ends))
        return found

    def _describe(self, hidden: Hidden, log_probabilities: list[float], per_token: bool) -> dict[str, Any]:
        pll, count = math.fsum(log_probabilities), len(log_probabilities)
        found = {"pll": pll, "tokens": count, "pppl": math.exp(min(-pll / count, _LARGEST))}
        if not per_token:
            return found
        tokens = self.tokenizer.ids_to_tokens(hidden.ids[hidden.positions])
        rows = zip(tokens, log_probabilities, strict=True)
        return found | {"per_token": [{"token": token, "log_probability": value} for token, value in rows]}
