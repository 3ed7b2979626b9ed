"""What every pipeline is: items into rows of tokens, rows through the engine, outputs into plain results, in order."""

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Self, TypedDict

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.prefetch import prefetch
from bert_jax.data.tasks.encoded import Encoded, encode_texts, interleaved
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.source import AnySource
from bert_jax.inference.engine.engine import Engine
from bert_jax.inference.engine.programs import cast_weights
from bert_jax.inference.tasks.task_source import HEAD_OF, longest_row, model_for
from bert_jax.model.heads import HEADS
from bert_jax.runtime.compilation_cache import keep_compiled_programs

logger = logging.getLogger(__name__)

ANY_LENGTH = 1 << 30  # tokens: as many as the model takes
CHUNK = 1024  # items that are encoded together, grouped by length, and answered before the next come
ON_ERROR = ("raise", "return")

_OUTPUTS = ("logits", "start_logits", "end_logits")


class Running(TypedDict, total=False):
    """How a pipeline runs its model; what they are: see `TaskModel`."""

    batch_size: int | None
    dtype: str | None
    cache: bool
    devices: Sequence[Any] | None


class EncodedItems(NamedTuple):
    """What `TaskModel.encode` makes of items.

    Attributes:
        facts: what `results` must know of them.
        encoded: their rows.
        notes: what the user is to know of them, a line each.
    """

    facts: Any
    encoded: Encoded
    notes: tuple[str, ...] = ()


NOTHING = EncodedItems(None, Encoded({}, {}, np.zeros(0, np.int64), {}))
"""Of no items."""


class TaskModel:
    """A model and its tokenizer behind an engine. Each pipeline says how its items become rows, and results of outputs.

    Compiled are one row, an eighth of a full batch and a full one of each length (powers of two from 16, and the
    longest), when they are first needed or by `compile_all`; `compilations` counts them.

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
        choices: rows of an example, where batches have an axis for them.
        config, tokenizer: of the model.
        source: where it was read from.
        engine: what runs it.
    """

    task: str
    longest: int = ANY_LENGTH
    packing: bool = False
    per_token: bool = False
    choices: int | None = None

    def __init__(
        self,
        source: AnySource | Loaded,
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
        config, params = cast_weights(self.config, loaded.params)
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

    def with_activations(self, dtype: str) -> Self:
        """The same model, whose `apply` has activations of this type whatever the backend; its engine is this one's."""
        other = copy.copy(self)
        other._model = self._model.clone(config=self._model.config.replace(activation_dtype=dtype))
        return other

    @property
    def compilations(self) -> int:
        """How many programs were compiled."""
        return self.engine.compilations

    def compile_all(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Compiles ahead of time all that calls with the options of the class can need, so that none waits for it.

        Args:
            progress: called with (how many are done, how many there are) after each.

        Returns:
            how many programs there are now.
        """
        targets, options = self.beside_tokens(**self.settled), self.engine_options(**self.settled)
        return self.engine.compile_all(progress, targets=targets, choices=self.choices, **options)

    def stream(
        self, items: Iterable[Any], *, chunk: int = CHUNK, on_error: str = "raise", first: int = 0, **options: Any
    ) -> Iterator[Any]:
        """The results of any number of items, one by one and in their order; a few times `chunk` of them are in memory.

        The next items are encoded by a thread while the device works on these. They are taken in the caller's thread;
        what that raises comes after the results of those before.

        Args:
            items: what `__call__` takes in a list; or a UserError, of what could not even be read.
            chunk: how many are encoded together and sorted by length.
            on_error: "raise", or "return": the UserError stands in the place of the item's result, and the others get
                theirs.
            first: the number of the first item, from 0, for errors.
            **options: as `__call__`; what is None or not given is as the class has settled it.
        """
        found = self.answered(items, chunk=chunk, on_error=on_error, first=first, **options)
        return (result for _, result in found)

    def answered(
        self, items: Iterable[Any], *, chunk: int = CHUNK, on_error: str = "raise", first: int = 0, **options: Any
    ) -> Iterator[tuple[Any, Any]]:
        """(item, its result), as `stream` gives the results."""
        options = self._in_place_of_settled(options)
        if on_error not in ON_ERROR:
            raise UserError(f"on_error={on_error!r}: expected one of {', '.join(ON_ERROR)}")
        if chunk < 1:
            raise UserError(f"chunk={chunk}: expected at least 1")
        kept: deque[_Answerable] = deque()

        def rows() -> Iterator[Encoded]:
            for one in prefetch(partial(self._answerable, on_error, options), _chunks(items, chunk, first)):
                kept.append(one)
                yield one.rows.encoded

        for outputs in self.engine.stream(rows(), **self.engine_options(**options)):
            one = kept.popleft()
            results = iter(() if one.rows is NOTHING else self.results(one.rows.facts, outputs, **options))
            for number, item in enumerate(one.chunk.items):
                yield item, one.wrong[number] if number in one.wrong else next(results)
            if one.chunk.failure is not None:
                raise one.chunk.failure

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

    def _answerable(self, on_error: str, options: Mapping[str, Any], chunk: "_Chunk") -> "_Answerable":
        wrong = {number: item for number, item in enumerate(chunk.items) if isinstance(item, UserError)}
        try:
            if wrong:
                raise next(iter(wrong.values()))
            rows = self.encode(chunk.items, chunk.first, **options) if chunk.items else NOTHING
        except UserError:
            if on_error == "raise":
                raise
            wrong = self._wrong_ones(chunk, options)
            good = [item for number, item in enumerate(chunk.items) if number not in wrong]
            rows = self.encode(good, chunk.first, **options) if good else NOTHING
        for note in rows.notes:
            logger.warning(note)
        return _Answerable(chunk, wrong, rows)

    def _wrong_ones(self, chunk: "_Chunk", options: Mapping[str, Any]) -> dict[int, UserError]:
        wrong = {}
        for number, item in enumerate(chunk.items):
            try:
                if isinstance(item, UserError):
                    raise item
                self.encode([item], chunk.first + number, **options)
            except UserError as error:
                wrong[number] = error
        return wrong

    # What a pipeline says of itself

    def check_options(self, **options: Any) -> None:
        """Raises UserError for a value that an option cannot have."""

    def encode(self, items: list[Any], first: int, **options: Any) -> EncodedItems:
        """Items as rows; `first`: the number of the first, for errors.

        Where one is at fault each is encoded by itself, to see which: nothing is said here, but in the `notes`.

        Raises:
            UserError: an item that cannot be answered.
        """
        raise NotImplementedError

    def results(self, facts: Any, outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        """The results of the items of `encode`, by its facts and the engine's outputs for its rows."""
        raise NotImplementedError

    def beside_tokens(self, **options: Any) -> dict[str, tuple[int, ...]]:
        """What a row of `encode` has beside its tokens, int32: name -> its shape."""
        return {}

    def engine_options(self, **options: Any) -> dict[str, Any]:
        """Which of the options of a call `apply` takes, and as what."""
        return {}

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str | None]], max_length: int | None = None
    ) -> tuple[Encoded, tuple[str, ...]]:
        """A row for each text or pair of texts, cut to `max_length` (None: `longest`) at the end, of a pair the longer;
        and notes on how many were."""
        longest = self.longest if max_length is None else min(max_length, self.longest)
        parts, notes = [], []
        for paired in (False, True):
            rows = [row for row, (_, second) in enumerate(pairs) if (second is not None) == paired]
            first, second = [pairs[row][0] for row in rows], [pairs[row][1] or "" for row in rows] if paired else None
            examples = encode_texts(self.tokenizer, first, second, max_length=longest, targets={})
            if cut := self._cut(examples, first, second, longest):
                notes.append(f"{cut} of {len(rows)} texts are longer than {longest} tokens and were cut")
            parts.append((np.array(rows, np.int64), examples))
        return interleaved(parts), tuple(notes)

    def _cut(self, examples: Encoded, texts: list[str], pairs: list[str] | None, longest: int) -> int:
        full = np.flatnonzero(examples.row_lengths == longest)
        lengths = self.tokenizer.encode_flat([texts[i] for i in full])[1]
        if pairs is not None:
            lengths = lengths + self.tokenizer.encode_flat([pairs[i] for i in full])[1]
        return int((lengths + self.tokenizer.special_tokens_added(pair=pairs is not None) > longest).sum())

    def apply(self, params: Any, batch: Mapping[str, jax.Array], **options: Any) -> tuple[jax.Array, ...]:
        """The head's outputs: (logits,), or (start_logits, end_logits)."""
        output: Any = self._model.apply({"params": params}, **model_inputs(self.config, batch))
        return tuple(getattr(output, name) for name in _OUTPUTS if hasattr(output, name))


class _Chunk(NamedTuple):
    """Items that are answered together, the number of the first, and what the reading of more has failed with."""

    items: list[Any]
    first: int
    failure: Exception | None


class _Answerable(NamedTuple):
    """A chunk, what is wrong with its items by their place, and what `encode` made of the others."""

    chunk: _Chunk
    wrong: dict[int, UserError]
    rows: EncodedItems


def _chunks(items: Iterable[Any], size: int, first: int) -> Iterator[_Chunk]:
    iterator = iter(items)
    while True:
        some, failure = [], None
        try:
            for item in islice(iterator, size):
                some.append(item)  # one by one: what was read before a failure is answered
        except Exception as error:
            failure = error
        if some or failure is not None:
            yield _Chunk(some, first, failure)
        if len(some) < size or failure is not None:
            return
        first += size


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
