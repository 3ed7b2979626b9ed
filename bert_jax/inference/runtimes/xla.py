"""XLA, on every device: the compiled programs of a function, and its parameters in the type that products use."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.inference.runtimes.runtime import Batch, Outputs, Shape
from bert_jax.runtime.forks import refuse_inherited
from bert_jax.tree import flatten, unflatten

ROWS = "rows"
# Tokens of a full batch on each device: on a CPU as many as fit the caches, on an accelerator enough to use all units.
CPU_TOKENS, ACCELERATOR_TOKENS = 1024, 16384


class Programs:
    """The compiled programs of `function(params, batch, **options)`.

    The rows of a batch are sharded over the devices if their number is divisible by that of the devices; otherwise (for
    a single row, for example) the first device runs the batch alone. Each device has all parameters. Calls from several
    threads are safe.

    Args:
        function: a pure function; `batch` is a dict of arrays. Rows are the first axis of its inputs and outputs.
        params: its first argument, a nested dict of float arrays.
        devices: the devices to run on; None: `jax.default_device` if it is set, else all devices of this process.
        dtype: the type of the matrix products' operands, for the user.

    Attributes: see `Runtime`; there is one program for each shape of batch and value of the options, and the parameters
        are on the devices.

    Raises:
        UserError: `devices` is empty.
        RuntimeError: this process was forked after another had used JAX to compute (see `refuse_inherited`).
    """

    name = "xla"
    any_shape = False
    unpadded = 0
    at_once = 1

    def __init__(
        self, function: Callable[..., Any], params: Any, devices: Sequence[Any] | None = None, dtype: str = "float32"
    ):
        refuse_inherited("JAX")
        self.dtype = dtype
        devices = _local_devices() if devices is None else devices
        if not len(devices):
            raise UserError("devices: found an empty list; expected at least one, or None for all of this process")
        mesh = Mesh(np.array(devices), (ROWS,))
        self.devices = len(devices)
        self.full_batch = CPU_TOKENS if devices[0].platform == "cpu" else ACCELERATOR_TOKENS
        self._spread, self._alone = NamedSharding(mesh, P(ROWS)), SingleDeviceSharding(devices[0])
        self._function = function
        self._compiled: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._everywhere = NamedSharding(mesh, P()) if self.devices > 1 else self._alone
        self.take_parameters(params)

    def take_parameters(self, params: Any) -> None:
        """Computes with these from now on, in the same programs; their shapes and types are as before."""
        self.params = jax.device_put(params, self._everywhere)
        self._params_alone = jax.tree.map(lambda leaf: leaf.addressable_data(0), self.params)

    @property
    def compilations(self) -> int:
        return len(self._compiled)

    def __call__(self, batch: Batch, **options: Any) -> Any:
        """Returns the function's outputs, on the devices; they may not be computed yet."""
        layout, params = self._layout(batch)
        program = self.program(batch, **options)
        return program(params, batch if layout is self._alone else jax.device_put(dict(batch), layout))

    def collect(self, started: Any) -> Outputs:
        return jax.device_get(started)

    def prepare(self, batch: Mapping[str, Shape], padded: bool, **options: Any) -> None:
        self.program(batch, **options)

    def program(self, batch: "Mapping[str, np.ndarray | Shape]", **options: Any) -> Any:
        """The program for arrays of these shapes and types; compiles it if there is none."""
        key = (*((name, batch[name].shape, batch[name].dtype) for name in sorted(batch)), *sorted(options.items()))
        if key not in self._compiled:
            with self._lock:
                if key not in self._compiled:
                    self._compiled[key] = self.lowered(batch, **options).compile()
        return self._compiled[key]

    def lowered(self, batch: "Mapping[str, np.ndarray | Shape]", **options: Any) -> Any:
        """The program before compilation, a `jax.stages.Lowered`."""
        layout, params = self._layout(batch)
        arguments = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout) for name, x in batch.items()}
        return jax.jit(lambda params, batch: self._function(params, batch, **options)).lower(params, arguments)

    def _layout(self, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """The sharding of a batch, and the parameters on the same devices."""
        rows = next(iter(batch.values())).shape[0]
        if self.devices == 1 or rows % self.devices:
            return self._alone, self._params_alone
        return self._spread, self.params


def _local_devices() -> Sequence[Any]:
    default = jax.default_device.value  # unlike jax.config.values, includes `with jax.default_device(...)`
    if default is None:
        return jax.local_devices()
    return jax.local_devices(backend=default)[:1] if isinstance(default, str) else [default]


_OPERANDS = ("kernel", "decoder")  # the weights of dense layers, and of the matrix product that makes token logits
_TABLE, _DECODER = "bert/embeddings/word_embeddings", "mlm_head/decoder"


def cast_weights(config: BertConfig, params: Any) -> tuple[BertConfig, Any]:
    """Casts every weight of a matrix product to `config.dtype`; the outputs are the same, bit for bit.

    One row of 16 tokens then takes a third of the time. The token table stays float32 for look-ups; if it is also the
    decoder, the decoder becomes a parameter of its own. Do not take gradients of these parameters.

    Args:
        config: the model's config; with dtype float32 nothing changes.
        params: a nested dict of float32 arrays.

    Returns:
        The config, with `tie_word_embeddings=False` if the table was the decoder, and the parameters.
    """
    if jnp.dtype(config.dtype) == jnp.float32:
        return config, params
    flat = flatten(params)
    if config.tie_word_embeddings and any(path.startswith("mlm_head/") for path in flat):
        config = config.replace(tie_word_embeddings=False)
        flat[_DECODER] = flat[_TABLE]
    is_operand = {path: path.rsplit("/", 1)[-1] in _OPERANDS for path in flat}
    return config, unflatten(
        {p: jax.device_get(x).astype(config.dtype) if is_operand[p] else x for p, x in flat.items()}
    )
