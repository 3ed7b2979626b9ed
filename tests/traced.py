"""Which functions JAX traces meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def traced() -> Iterator[list[str]]:
    """`with traced() as names: ...`; each name as often as the function was traced."""
    names: list[str] = []

    def listen(event: str, _: float, fun_name: str = "", **__: object) -> None:
        if event == "/jax/core/compile/jaxpr_trace_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda: 0)()
        assert names, "JAX calls what it traces otherwise now; without its word no test here could fail"
        names.clear()
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
