"""What every pipeline is: items into rows of tokens, rows through the engine, outputs into plain results, in order."""

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict

import jax
import numpy as np

from bert_jax.compilation_cache import keep_compiled_programs
from bert_jax.config import BertConfig
from bert_jax.data.tasks.encoded import Encoded, encode_texts, interleaved
from bert_jax.errors import UserError
from bert_jax.inference.ahead import ahead
from bert_jax.inference.engine import Engine
from bert_jax.inference.narrow import narrowed
from bert_jax.inference.task_source import HEAD_OF, longest_row, model_for
from bert_jax.load import Loaded
from bert_jax.model.heads import HEADS

logger = logging.getLogger(__name__)

ANY_LENGTH = 1 << 30  # tokens: as many as the model takes
CHUNK = 1024  # items that are encoded together, grouped by length, and answered before the next come
ON_ERROR = ("raise", "return")
NOTHING = Encoded({}, {}, np.zeros(0, np.int64), {})  # the rows of no items

_OUTPUTS = ("logits", "start_logits", "end_logits")


class Running(TypedDict, total=False):
    """How a pipeline runs its model; what they are: see `TaskModel`."""

    batch_size: int | None
    dtype: str | None
    cache: bool
    devices: Sequence[Any] | None


class TaskModel:
    """A model and its tokenizer behind an engine. Each pipeline says how its items become rows, and results of outputs.

    Compiled are one row, an eighth of a full batch and a full one of each length (powers of two from 16, and the
    longest), when they are first needed or by `engine.compile_all`; `compilations` counts them.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned, with the head of the task.
        batch_size: rows of a full batch; None: see `Engine`.
        dtype: "float32" or "bfloat16", the type of the products' operands.
        cache: keep compiled programs on disk for the next start; never where JAX was told another place already.
        devices: what it runs on, as `jax.devices()` lists them; None: that of `jax.default_device` where one is set,
            else all of this process.

    Attributes:
        task: a key of `task_source.HEAD_OF`. A pipeline sets this and the next three on its class; on the instance,
            before `__init__`, where its own arguments decide.
        longest: tokens that a row may have; at most as many as the model takes, which `__init__` sees to.
        packing: short sequences share rows, never of a decoder; for outputs of tokens, or of each sequence of a row.
        per_token: the outputs are of tokens.
        config, tokenizer: of the model.
        source: where it was read from.
        engine: what runs it.
    """

    task: str
    longest: int = ANY_LENGTH
    packing: bool = False
    per_token: bool = False

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        batch_size: int | None = None,
        dtype: str | None = None,
        cache: bool = False,
        devices: Sequence[Any] | None = None,
    ):
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size={batch_size}: expected at least 1")
        if cache:
            keep_compiled_programs()
        loaded, self.tokenizer = model_for(self.task, source, dtype=dtype)
        self.config = loaded.config
        self.source = loaded.report.source
        self.longest = min(self.longest, longest_row(self.config, self.tokenizer))
        config, params = narrowed(self.config, loaded.params)
        self._model = HEADS[HEAD_OF[self.task]](config)
        self.engine = Engine(
            self.apply,
            params,
            longest=self.longest,
            batch_size=batch_size,
            packing=self.packing and not self.config.is_decoder,
            per_token=self.per_token,
            devices=devices,
        )
        self.settled: dict[str, Any] = {}

    @property
    def compilations(self) -> int:
        """How many programs were compiled."""
        return self.engine.compilations

    def stream(
        self, items: Iterable[Any], *, chunk: int = CHUNK, on_error: str = "raise", first: int = 0, **options: Any
    ) -> Iterator[Any]:
        """The results of any number of items, one by one and in their order; `chunk` of them are in memory at a time.

        The next items are encoded by a thread while the device works on these.

        Args:
            items: what `__call__` takes in a list; or a UserError, of what could not even be read.
            chunk: how many are encoded together and sorted by length.
            on_error: "raise", or "return": the UserError stands in the place of the item's result, and the others get
                theirs.
            first: the number of the first item, from 0, for errors.
            **options: as `__call__`; what is None or not given is as the class has settled it.
        """
        options = self._in_place_of_settled(options)
        if on_error not in ON_ERROR:
            raise UserError(f"on_error={on_error!r}: expected one of {', '.join(ON_ERROR)}")
        if chunk < 1:
            raise UserError(f"chunk={chunk}: expected at least 1")
        kept: deque[tuple[Any, dict[int, UserError]]] = deque()

        def encoded() -> Iterator[Encoded]:
            chunks = self._chunks(items, chunk, on_error, first, options)
            one = isinstance(items, Sequence) and len(items) <= chunk
            for facts, wrong, rows in chunks if one else ahead(chunks):
                kept.append((facts, wrong))
                yield rows

        for outputs in self.engine.stream(encoded(), **self.engine_options(**options)):
            facts, wrong = kept.popleft()
            results = iter(() if facts is None else self.results(facts, outputs, **options))
            count = len(wrong) + (0 if facts is None else self.count(facts))
            yield from (wrong[number] if number in wrong else next(results) for number in range(count))

    def settle(self, **options: Any) -> None:
        """Checks the options that a call may give, and keeps them for calls that do not."""
        self.check_options(**options)
        self.settled = options

    def _in_place_of_settled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(given) - set(self.settled)):
            raise TypeError(f"{type(self).__name__}: unexpected option {unknown[0]!r}; there is {list(self.settled)}")
        options = self.settled | {name: value for name, value in given.items() if value is not None}
        self.check_options(**options)
        return options

    def _chunks(
        self, items: Iterable[Any], chunk: int, on_error: str, first: int, options: Mapping[str, Any]
    ) -> Iterator[tuple[Any, dict[int, UserError], Encoded]]:
        iterator = iter(items)
        while some := list(islice(iterator, chunk)):
            wrong = {number: item for number, item in enumerate(some) if isinstance(item, UserError)}
            try:
                if wrong:
                    raise next(iter(wrong.values()))
                facts, rows = self.encode(some, first, **options)
            except UserError:
                if on_error == "raise":
                    raise
                wrong = self._wrong_ones(some, first, options)
                good = [item for number, item in enumerate(some) if number not in wrong]
                facts, rows = self.encode(good, first, **options) if good else (None, NOTHING)
            yield facts, wrong, rows
            first += len(some)

    def _wrong_ones(self, some: list[Any], first: int, options: Mapping[str, Any]) -> dict[int, UserError]:
        wrong = {}
        for number, item in enumerate(some):
            try:
                if isinstance(item, UserError):
                    raise item
                self.encode([item], first + number, **options)
            except UserError as error:
                wrong[number] = error
        return wrong

    # What a pipeline says of itself

    def check_options(self, **options: Any) -> None:
        """Raises UserError for a value that an option cannot have."""

    def encode(self, items: list[Any], first: int, **options: Any) -> tuple[Any, Encoded]:
        """Items as rows, and what `results` must know of them; `first`: the number of the first, for errors.

        Raises:
            UserError: an item that cannot be answered.
        """
        raise NotImplementedError

    def results(self, facts: Any, outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        """The results of the items of `encode`, of the engine's outputs for their rows."""
        raise NotImplementedError

    def count(self, facts: Any) -> int:
        """How many items those were."""
        return len(facts)

    def engine_options(self, **options: Any) -> dict[str, Any]:
        """Which of the options of a call `apply` takes, and as what."""
        return {}

    def encode_pairs(self, pairs: Sequence[tuple[str, str | None]]) -> Encoded:
        """A row for each text or pair of texts, cut to `longest` at the end, of a pair the longer; a warning says how
        many were."""
        parts = []
        for paired in (False, True):
            rows = [row for row, (_, second) in enumerate(pairs) if (second is not None) == paired]
            first, second = [pairs[row][0] for row in rows], [pairs[row][1] or "" for row in rows] if paired else None
            examples = encode_texts(self.tokenizer, first, second, max_length=self.longest, targets={})
            self._warn_of_cut(examples, first, second)
            parts.append((np.array(rows, np.int64), examples))
        return interleaved(parts)

    def _warn_of_cut(self, examples: Encoded, texts: list[str], pairs: list[str] | None) -> None:
        full = np.flatnonzero(examples.row_lengths == self.longest)
        lengths = self.tokenizer.encode_flat([texts[i] for i in full])[1]
        if pairs is not None:
            lengths = lengths + self.tokenizer.encode_flat([pairs[i] for i in full])[1]
        cut = int((lengths + self.tokenizer.special_tokens_added(pair=pairs is not None) > self.longest).sum())
        if cut:
            logger.warning("%d of %d texts are longer than %d tokens and were cut", cut, len(texts), self.longest)

    def apply(self, params: Any, batch: Mapping[str, jax.Array], **options: Any) -> tuple[jax.Array, ...]:
        """The head's outputs: (logits,), or (start_logits, end_logits)."""
        output: Any = self._model.apply({"params": params}, **model_inputs(self.config, batch))
        return tuple(getattr(output, name) for name in _OUTPUTS if hasattr(output, name))


def model_inputs(config: BertConfig, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
    """A batch of the engine as `Bert` takes it; of a packed one every sequence sees itself alone.

    Positions begin anew in each sequence; RoBERTa's first is pad + 1, as in `model.embeddings.positions_of`.
    """
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    if "sequence_ids" not in batch:
        return inputs | {"attention_mask": batch["attention_mask"]}
    of_BL = batch["sequence_ids"]
    first = config.pad_token_id + 1 if config.family == "roberta" else 0
    return inputs | {
        "attention_mask": of_BL[:, :, None] == of_BL[:, None, :],
        "position_ids": batch["position_ids"] + first,
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
