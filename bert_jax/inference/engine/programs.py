"""The compiled programs of an engine, their count, and the parameters as their products read them."""

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
from bert_jax.tree import flatten, unflatten

ROWS = "rows"
Batch = Mapping[str, np.ndarray]


class Programs:
    """Compiled forms of `function(params, batch, **options)`.

    The rows of a batch are spread over the devices where they can be shared out evenly; where not (a single row), the
    first device does it alone. The parameters lie on each device. Calls from several threads are safe.

    Args:
        function: pure; `batch` is a dict of arrays with the rows on the first axis, and so is all that it returns.
        params: its first argument, float arrays in a nested dict.
        devices: None: that of `jax.default_device` where one is set, else all of this process.

    Attributes:
        compilations: how many programs there are: one for each shape of batch and value of the options.
        params: on the devices.
        devices: how many there are.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        params: Any,
        devices: Sequence[Any] | None = None,
    ):
        devices = _local_devices() if devices is None else devices
        if not len(devices):
            raise UserError("devices: an empty list; leave it out for all of this process")
        mesh = Mesh(np.array(devices), (ROWS,))
        self.devices = len(devices)
        self._spread, self._alone = NamedSharding(mesh, P(ROWS)), SingleDeviceSharding(devices[0])
        self._function = function
        self._compiled: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self.params = jax.device_put(params, NamedSharding(mesh, P()) if self.devices > 1 else self._alone)
        self._params_alone = jax.tree.map(lambda leaf: leaf.addressable_data(0), self.params)

    @property
    def compilations(self) -> int:
        return len(self._compiled)

    def __call__(self, batch: Batch, **options: Any) -> Any:
        """What the function returns, on the devices and perhaps not computed yet."""
        layout, params = self._layout(batch)
        program = self.program(batch, **options)
        return program(params, batch if layout is self._alone else jax.device_put(dict(batch), layout))

    def program(self, batch: "Mapping[str, np.ndarray | jax.ShapeDtypeStruct]", **options: Any) -> Any:
        """The compiled form for arrays like these, made now if there is none."""
        key = (*((name, batch[name].shape, batch[name].dtype) for name in sorted(batch)), *sorted(options.items()))
        if key not in self._compiled:
            with self._lock:
                if key not in self._compiled:
                    self._compiled[key] = self.lowered(batch, **options).compile()
        return self._compiled[key]

    def lowered(self, batch: "Mapping[str, np.ndarray | jax.ShapeDtypeStruct]", **options: Any) -> Any:
        """The same before it is compiled: a `jax.stages.Lowered`."""
        layout, params = self._layout(batch)
        arguments = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout) for name, x in batch.items()}
        return jax.jit(lambda params, batch: self._function(params, batch, **options)).lower(params, arguments)

    def _layout(self, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """How the rows of a batch lie on the devices, and the parameters as they lie there."""
        rows = next(iter(batch.values())).shape[0]
        if self.devices == 1 or rows % self.devices:
            return self._alone, self._params_alone
        return self._spread, self.params


def _local_devices() -> Sequence[Any]:
    default = jax.default_device.value  # a `with jax.default_device(...)` too, of which jax.config.values knows nothing
    if default is None:
        return jax.local_devices()
    return jax.local_devices(backend=default)[:1] if isinstance(default, str) else [default]


_OPERANDS = ("kernel", "decoder")  # of dense layers, and what gives a token its logit
_TABLE, _DECODER = "bert/embeddings/word_embeddings", "mlm_head/decoder"


def cast_weights(config: BertConfig, params: Any) -> tuple[BertConfig, Any]:
    """The same model with every weight of a product in `config.dtype`: bit for bit the same outputs.

    With one row of 16 tokens that is a third of the time. A token table that is looked up stays float32; where it is
    the decoder too, that becomes a parameter of its own. No gradient should be taken of these parameters.

    Args:
        config: of the model; in float32 nothing changes.
        params: nested dict of float32 arrays.

    Returns:
        the config, untied where the table was the decoder, and the parameters.
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
