"""The base class of pipelines: encodes items as rows of tokens, runs the engine, makes results of outputs, in order."""

import copy
import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from html import escape
from itertools import islice
from typing import Any, NamedTuple, Self, TypedDict

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.prefetch import prefetch
from bert_jax.data.tasks.encoded import Encoded, encode_texts, interleaved
from bert_jax.data.tasks.unknown import Unknown
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.onnx.graph import Graph
from bert_jax.formats.onnx.model import HEAD_OUTPUTS, build_graph, check_expressible, is_expressible
from bert_jax.formats.source import AnySource
from bert_jax.inference.engine.engine import Engine
from bert_jax.inference.runtimes import INT8
from bert_jax.inference.runtimes.choice import AUTO, XLA, choose, graph_programs
from bert_jax.inference.runtimes.xla import Programs, cast_weights
from bert_jax.inference.tasks.task_source import HEAD_OF, check_count, longest_row, model_for, untrained_parts
from bert_jax.model.embeddings import packed_inputs
from bert_jax.model.heads import HEADS
from bert_jax.runtime.compilation_cache import keep_compiled_programs
from bert_jax.shown import facts_table
from bert_jax.tree import as_numpy, flatten, parameter_count, sha256_of_parameters, unflatten

logger = logging.getLogger(__name__)

ANY_LENGTH = 1 << 30  # tokens; the model's own limit then applies
CHUNK = 1024  # items that are encoded together and grouped by length
ON_ERROR = ("raise", "return")

_OUTPUTS = ("logits", "start_logits", "end_logits")


class Running(TypedDict, total=False):
    """How a pipeline runs its model; see `TaskModel`."""

    batch_size: int | None
    dtype: str | None
    cache: bool
    devices: Sequence[Any] | None
    runtime: str


class Truncated(NamedTuple):
    """How many texts were truncated, to how many tokens; and how many texts there were."""

    count: int = 0
    of: int = 0
    longest: int = 0

    def __add__(self, other: Any) -> "Truncated":
        return Truncated(self.count + other.count, self.of + other.of, max(self.longest, other.longest))

    def warn(self) -> None:
        if self.count:
            told = f"{self.count} of {self.of} texts are longer than {self.longest} tokens and were truncated"
            logger.warning(told)


class EncodedItems(NamedTuple):
    """The result of `TaskModel.encode`.

    Attributes:
        facts: what `results` needs to know about the items.
        encoded: their rows.
        truncated: how many of their texts were.
    """

    facts: Any
    encoded: Encoded
    truncated: Truncated = Truncated()


NOTHING = EncodedItems(None, Encoded({}, {}, np.zeros(0, np.int64), {}))
"""The result for no items."""


class TaskModel:
    """A model, its tokenizer and the engine that runs it.

    Each pipeline is a subclass that says how items become rows and how outputs become results.

    On XLA there are three programs for each length (powers of two from 16, and the longest): for one row, for an eighth
    of a full batch and for a full batch. The other runtimes take batches of any shape in two or three programs.
    Programs are compiled when first needed, or by `compile_all`; `compilations` is their number.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned, with the head of the task.
        batch_size: rows of a full batch; None: see `Engine`.
        dtype: "float32" or "bfloat16", the type of the matrix products' operands, or with OpenVINO "int8" for those in
            the layers. None: bfloat16 on a CPU that has instructions for it, else float32; that of the config for what
            `load` returned.
        cache: keep compiled programs on disk for the next start, unless JAX already has a cache elsewhere.
        devices: the devices to run on, out of `jax.devices()`; None: `jax.default_device` if it is set, else all
            devices of this process.
        runtime: "xla", "openvino", "onnxruntime", or "auto": OpenVINO on a CPU if it is installed, else XLA; without
            instructions for bfloat16 onnxruntime for single rows, with AVX-512 short ones, if both are installed.

    Attributes:
        task: a key of `task_source.HEAD_OF`. A pipeline sets this and the next four on its class, or, if they depend on
            its arguments, on the instance before it calls `__init__`.
        longest: the most tokens of a row; `__init__` lowers it to what the model takes.
        packing: whether short sequences share rows (`__init__` ignores it for a decoder). The outputs must then be per
            token, or per sequence of a row.
        per_token: whether the outputs are per token.
        choices: rows per example, if batches have an axis for them; else None.
        config, tokenizer: the model's.
        parameters: the number of its parameters, without those that the task does not need.
        source: where the model was read from.
        untrained: parts of the head that were never trained, such as "classifier"; each dict of a result then has
            "untrained": True.
        engine: the `Engine`.
    """

    task: str
    longest: int = ANY_LENGTH
    packing: bool = False
    per_token: bool = False
    choices: int | None = None
    untrained: tuple[str, ...] = ()

    def __init__(
        self,
        source: AnySource | Loaded,
        *,
        batch_size: int | None = None,
        dtype: str | None = None,
        cache: bool = False,
        devices: Sequence[Any] | None = None,
        runtime: str = AUTO,
    ):
        if batch_size is not None:
            check_count("batch_size", batch_size)
        if cache:
            keep_compiled_programs()
        if dtype is None and isinstance(source, Loaded):
            dtype = source.config.dtype
        chosen = choose(runtime, dtype, devices)
        loaded, self.tokenizer = model_for(self.task, source, dtype=chosen.model_dtype)
        self.config = loaded.config
        self.source = loaded.report.source
        self.untrained = untrained_parts(self.task, loaded)
        if self.untrained:
            parts = ", ".join(self.untrained)
            logger.warning("%s: untrained %s: its answers mean nothing before it is fine-tuned", self.source, parts)
        self.longest = min(self.longest, longest_row(self.config, self.tokenizer))
        self.parameters = parameter_count(loaded.params)
        # The programs get the methods of a copy, which has no engine: those of this model would close a circle, which
        # keeps the parameters in memory when the last reference to it has gone.
        if chosen.name == XLA or (chosen.is_own and chosen.dtype != INT8 and not is_expressible(self.config)):
            config, params = cast_weights(self.config, loaded.params)
            self._model = HEADS[HEAD_OF[self.task]](config)
            programs = Programs(copy.copy(self).apply, params, devices, chosen.dtype)
        else:
            self._model = HEADS[HEAD_OF[self.task]](self.config)
            check_expressible(self.config)
            programs = graph_programs(chosen, loaded.params, copy.copy(self).graph)
        logger.info("%s: %s computes in %s", self.source, programs.name, programs.dtype)
        self.engine = Engine(
            programs,
            longest=self.longest,
            batch_size=batch_size,
            packing=self.packing and not self.config.is_decoder,
            per_token=self.per_token,
        )
        self.settled: dict[str, Any] = {}

    @cached_property
    def fingerprint(self) -> str:
        """A sha256, in hex, of all that decides the answers.

        The parameters in the type that matrix products use, the tokenizer, the architecture (an ALBERT of fewer layers
        has the same parameters), and how many tokens a row may have.
        """
        sums = sha256_of_parameters(jax.device_get(self.engine.programs.params)), self.tokenizer.fingerprint
        rules = json.dumps({**self.config.to_json(), "longest": self.longest}, sort_keys=True)
        return hashlib.sha256("".join((*sums, rules)).encode()).hexdigest()

    def take_parameters(self, params: Any) -> None:
        """Answers with these parameters of a model of the same config from now on; nothing is compiled again.

        Raises:
            ValueError: the model does not compute on XLA in float32, where parameters are as they were given.
        """
        programs = self.engine.programs
        if not isinstance(programs, Programs) or programs.dtype != "float32":
            raise ValueError(f"{programs.name} in {programs.dtype} keeps its own parameters; expected xla in float32")
        flat = flatten(params)
        programs.take_parameters(unflatten({path: flat[path] for path in flatten(programs.params)}))

    def with_activations(self, dtype: str) -> Self:
        """A copy whose `apply` uses plain operations with activations of this type on every backend.

        It shares this model's engine.
        """
        other = copy.copy(self)
        other._model = self._model.clone(config=self._model.config.replace(activation_dtype=dtype, attention="xla"))
        return other

    @property
    def compilations(self) -> int:
        """The number of compiled programs."""
        return self.engine.compilations

    def compile_all(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Compiles ahead of time every program that calls with the class's options can need.

        Args:
            progress: called with (programs done, total programs) after each.

        Returns:
            The number of compiled programs.
        """
        targets, options = self.beside_tokens(**self.settled), self.engine_options(**self.settled)
        return self.engine.compile_all(progress, targets=targets, choices=self.choices, **options)

    def stream(
        self, items: Iterable[Any], *, chunk: int = CHUNK, on_error: str = "raise", first: int = 0, **options: Any
    ) -> Iterator[Any]:
        """Yields the results of any number of items, in order; a few times `chunk` of them are in memory.

        A thread encodes the next items while the device works on the current ones. The items are read in the caller's
        thread; if reading raises, the error comes after the results of all items before.

        Args:
            items: the items that `__call__` takes in a list; or a UserError for an item that could not be read.
            chunk: the number of items that are encoded together and sorted by length.
            on_error: "raise", or "return": yield the UserError in place of the item's result, and continue.
            first: the number of the first item, from 0, for messages.
            **options: as in `__call__`; for options that are None or missing, the class's own values apply.
        """
        found = self.answered(items, chunk=chunk, on_error=on_error, first=first, **options)
        return (result for _, result in found)

    def answered(
        self, items: Iterable[Any], *, chunk: int = CHUNK, on_error: str = "raise", first: int = 0, **options: Any
    ) -> Iterator[tuple[Any, Any]]:
        """Yields (item, result); otherwise like `stream`.

        At the end warnings say how many texts were truncated, and whether the vocabulary does not fit them.
        """
        options = self._in_place_of_settled(options)
        if isinstance(items, str | bytes | Mapping):
            raise UserError(f"expected a list or another iterable of items, found one: {items!r:.40}")
        if on_error not in ON_ERROR:
            raise UserError(f"on_error={on_error!r}: expected one of {', '.join(ON_ERROR)}")
        check_count("chunk", chunk)
        kept: deque[_Answerable] = deque()

        def rows() -> Iterator[Encoded]:
            for one in prefetch(partial(self._answerable, on_error, options), _chunks(items, chunk, first)):
                kept.append(one)
                yield one.rows.encoded

        truncated, unknown = Truncated(), Unknown()
        try:
            for outputs in self.engine.stream(rows(), **self.engine_options(**options)):
                one = kept.popleft()
                truncated += one.rows.truncated
                unknown += self.unknown_in(one.rows.encoded)
                results = iter(() if one.rows is NOTHING else self.results(one.rows.facts, outputs, **options))
                for number, item in enumerate(one.chunk.items):
                    yield item, one.wrong[number] if number in one.wrong else self.marked(next(results))
                if one.chunk.failure is not None:
                    raise one.chunk.failure
        finally:
            truncated.warn()
            if warning := unknown.warning(self.source):
                logger.warning(warning)

    def marked(self, result: Any) -> Any:
        """A result whose dicts say "untrained": True if the head is."""
        if not self.untrained:
            return result
        if isinstance(result, dict):
            return {**result, "untrained": True}
        return [self.marked(one) for one in result] if isinstance(result, list) else result

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source}: {', '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        return facts_table(f"{type(self).__name__}: {self.source}", self._facts())

    def _facts(self) -> dict[str, str]:
        untrained = {"head": f"untrained {', '.join(self.untrained)}"} if self.untrained else {}
        return {
            "model": self.config.model_type,
            "size": f"{self.parameters:,} parameters",
            "rows": f"at most {self.longest:,} tokens",
            "runtime": f"{self.engine.programs.name}, {self.engine.programs.dtype}",
            **untrained,
        }

    def settle(self, **options: Any) -> None:
        """Checks the options of calls and stores them as defaults."""
        self.check_options(**options)
        self.settled = options

    def _in_place_of_settled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(given) - set(self.settled)):
            raise TypeError(f"{type(self).__name__}: unexpected option {unknown[0]!r}; expected {list(self.settled)}")
        options = self.settled | {name: value for name, value in given.items() if value is not None}
        self.check_options(**options)
        return options

    def _answerable(self, on_error: str, options: Mapping[str, Any], chunk: "_Chunk") -> "_Answerable":
        first_wrong = next((item for item in chunk.items if isinstance(item, UserError)), None)
        if first_wrong is not None and on_error == "raise":
            raise first_wrong
        if first_wrong is None:
            try:
                rows = self.encode(chunk.items, chunk.first, **options) if chunk.items else NOTHING
                return _Answerable(chunk, {}, rows)
            except UserError:
                if on_error == "raise":
                    raise
        wrong = self._wrong_ones(chunk, options)
        good = [item for number, item in enumerate(chunk.items) if number not in wrong]
        return _Answerable(chunk, wrong, self.encode(good, chunk.first, **options) if good else NOTHING)

    def _wrong_ones(self, chunk: "_Chunk", options: Mapping[str, Any]) -> dict[int, UserError]:
        wrong = {}
        for number, item in enumerate(chunk.items):
            if isinstance(item, UserError):
                wrong[number] = item
                continue
            try:
                self.encode([item], chunk.first + number, **options)
            except UserError as error:
                # Without the frames that it passed: they hold the whole chunk, as long as the user keeps the error.
                error.__cause__ = error.__context__ = None
                wrong[number] = error.with_traceback(None)
        return wrong

    # The methods that a pipeline overrides

    def check_options(self, **options: Any) -> None:
        """Raises UserError if an option has a wrong value."""

    def encode(self, items: list[Any], first: int, **options: Any) -> EncodedItems:
        """Encodes items as rows; `first` is the number of the first item, for messages.

        If it fails and errors are to be returned, each item is encoded again by itself to find the wrong ones. So it
        must log nothing.

        Raises:
            UserError: an item cannot be answered.
        """
        raise NotImplementedError

    def results(self, facts: Any, outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        """Makes the results of the items, from the facts of `encode` and the engine's outputs for its rows."""
        raise NotImplementedError

    def beside_tokens(self, **options: Any) -> dict[str, tuple[int, ...]]:
        """The arrays that a row of `encode` has in addition to its tokens, int32: name -> shape."""
        return {}

    def unknown_in(self, rows: Encoded) -> Unknown:
        """The [UNK] of rows, for a warning."""
        return Unknown.among(rows, self.tokenizer)

    def engine_options(self, **options: Any) -> dict[str, Any]:
        """The options that `apply` takes, derived from those of a call."""
        return {}

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str | None]], max_length: int | None = None
    ) -> tuple[Encoded, Truncated]:
        """Encodes each text or pair of texts as a row, truncated at the end to `max_length` tokens (None: `longest`).

        For a pair, the longer text is truncated.
        """
        longest = self.longest if max_length is None else min(max_length, self.longest)
        parts, truncated = [], Truncated()
        for paired in (False, True):
            rows = [row for row, (_, second) in enumerate(pairs) if (second is not None) == paired]
            if not rows and (paired or len(pairs)):  # encoding nothing takes as long as one short text
                continue
            first, second = [pairs[row][0] for row in rows], [pairs[row][1] or "" for row in rows] if paired else None
            examples = encode_texts(self.tokenizer, first, second, max_length=longest, targets={})
            truncated += Truncated(examples.truncated, len(rows), longest)
            parts.append((np.array(rows, np.int64), examples))
        return parts[0][1] if len(parts) == 1 else interleaved(parts), truncated

    def graph(
        self,
        params: Any,
        inputs: Collection[str],
        *,
        own_operators: bool = False,
        unpadded: bool = False,
        **options: Any,
    ) -> Graph:
        """`apply` as an ONNX graph, for batches that have these arrays, with the options of `engine_options`.

        The others are those of `build_graph`.
        """
        packed = "sequence_ids" in inputs
        outputs = partial(self.outputs, packed=packed, inputs=inputs, **options)
        flat, head = as_numpy(params), HEAD_OF[self.task]
        kind = {"packed": packed, "own_operators": own_operators, "unpadded": unpadded}
        return build_graph(self.config, flat, head, **kind, outputs=outputs)

    def outputs(
        self, g: Graph, config: BertConfig, x: str, *, packed: bool, inputs: Collection[str], **options: Any
    ) -> None:
        """Adds the outputs of `apply` to a graph, from the name of the last hidden state; a task that has its own
        `apply` overrides this, too.
        """
        HEAD_OUTPUTS[HEAD_OF[self.task]](g, config, x)

    def apply(self, params: Any, batch: Mapping[str, jax.Array], **options: Any) -> tuple[jax.Array, ...]:
        """Returns the head's outputs: (logits,), or (start_logits, end_logits)."""
        output: Any = self._model.apply({"params": params}, **model_inputs(self.config, batch))
        return tuple(getattr(output, name) for name in _OUTPUTS if hasattr(output, name))


class _Chunk(NamedTuple):
    """Items that are answered together, the number of the first one, and the error if reading the next one failed."""

    items: list[Any]
    first: int
    failure: Exception | None


class _Answerable(NamedTuple):
    """A chunk, the errors of its items by position, and the result of `encode` for the other items."""

    chunk: _Chunk
    wrong: dict[int, UserError]
    rows: EncodedItems


def _chunks(items: Iterable[Any], size: int, first: int) -> Iterator[_Chunk]:
    iterator = iter(items)
    while True:
        some, failure = [], None
        try:
            for item in islice(iterator, size):
                some.append(item)  # one at a time, to answer the items that were read before a failure
        except Exception as error:
            failure = error
        if some or failure is not None:
            yield _Chunk(some, first, failure)
        if len(some) < size or failure is not None:
            return
        first += size


def model_inputs(config: BertConfig, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Converts a batch of the engine, packed or not, to the inputs of `Bert`."""
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    if "sequence_ids" not in batch:
        return inputs | {"attention_mask": batch["attention_mask"]}
    return inputs | packed_inputs(config, batch["input_ids"], batch["sequence_ids"], batch["position_ids"])


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


MOST_ROWS = 100  # the most rows that a notebook shows; the list has all


class Results(list[Any]):
    """A list of a pipeline's results that notebooks show as tables. It equals the plain list, also for `json`."""

    def _repr_html_(self) -> str:
        """One table if the results are dicts; if they are lists of dicts, one numbered table for each."""
        if self and all(isinstance(item, Mapping) for item in self):
            return _table(self)
        return "".join(
            f"<p>{number}</p>{_table(item) if _is_rows(item) else f'<pre>{escape(repr(item))}</pre>'}"
            for number, item in enumerate(self[:MOST_ROWS])
        ) + _rest(len(self))


def first_of(results: Results) -> Any:
    """The first result; if it is a list, a notebook shows it as a table too."""
    return Results(results[0]) if isinstance(results[0], list) else results[0]


def _is_rows(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(row, Mapping) for row in item)


def _table(rows: list[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    lines = ("".join(f"<td>{_cell(row.get(name, ''))}</td>" for name in names) for row in rows[:MOST_ROWS])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{_rest(len(rows))}"


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else escape(str(value))


def _rest(count: int) -> str:
    return f"<p>… and {count - MOST_ROWS:,} more</p>" if count > MOST_ROWS else ""
