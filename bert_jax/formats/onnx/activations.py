"""The activations (`config.HIDDEN_ACTS`) in ONNX operators; their formulas are those of bert_jax/model/layers.py.

GELU is written out: onnxruntime 1.20 puts its kernel for GELU with a bias in place of the formula, and not in place of
ONNX's own operator.
"""

import math
from collections.abc import Callable

from bert_jax.config import XIELU_BETA, XIELU_EPS
from bert_jax.formats.onnx.graph import Graph


def _gelu(g: Graph, x: str) -> str:
    erf = g.op("Erf", g.op("Div", x, math.sqrt(2.0)))
    return g.op("Mul", g.op("Mul", x, g.op("Add", erf, 1.0)), 0.5)


def _gelu_tanh(g: Graph, x: str) -> str:
    inner = g.op("Add", x, g.op("Mul", g.op("Pow", x, 3.0), 0.044715))
    tanh = g.op("Tanh", g.op("Mul", inner, math.sqrt(2.0 / math.pi)))
    return g.op("Mul", g.op("Mul", x, 0.5), g.op("Add", tanh, 1.0))


def _laplace(g: Graph, x: str) -> str:
    erf = g.op("Erf", g.op("Div", g.op("Sub", x, 0.707107), 0.282095 * math.sqrt(2.0)))
    return g.op("Mul", g.op("Add", erf, 1.0), 0.5)


def _silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def _relu2(g: Graph, x: str) -> str:
    y = g.op("Relu", x)
    return g.op("Mul", y, y)


ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "gelu": _gelu,
    "gelu_10": lambda g, x: g.op("Clip", _gelu(g, x), -10.0, 10.0),
    "gelu_accurate": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_python": _gelu,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "hardswish": lambda g, x: g.op("HardSwish", x),
    "laplace": _laplace,
    "leaky_relu": lambda g, x: g.op("LeakyRelu", x, alpha=0.01),
    "linear": lambda g, x: x,
    "mish": lambda g, x: g.op("Mul", x, g.op("Tanh", g.op("Softplus", x))),
    "quick_gelu": lambda g, x: g.op("Mul", x, g.op("Sigmoid", g.op("Mul", x, 1.702))),
    "relu": lambda g, x: g.op("Relu", x),
    "relu2": _relu2,
    "relu6": lambda g, x: g.op("Clip", x, 0.0, 6.0),
    "sigmoid": lambda g, x: g.op("Sigmoid", x),
    "silu": _silu,
    "sqrtsoftplus": lambda g, x: g.op("Sqrt", g.op("Softplus", x)),
    "swish": _silu,
    "tanh": lambda g, x: g.op("Tanh", x),
}


def activation(g: Graph, x: str, name: str, path: str) -> str:
    """The activation `name` of x; the parameters of "prelu" and "xielu" are at `path` + "/weight" and the like."""
    if name == "prelu":
        return g.op("PRelu", x, f"{path}/weight")
    if name == "xielu":
        return _xielu(g, x, f"{path}/alpha_p", f"{path}/alpha_n")
    return ACTIVATIONS[name](g, x)


def _xielu(g: Graph, x: str, alpha_p: str, alpha_n: str) -> str:
    positive = g.op("Mul", g.op("Mul", g.op("Softplus", alpha_p), x), x)
    # ONNX has no expm1. Where e^x - 1 loses digits, |x| is small, and so is their share of the result.
    grown = g.op("Sub", g.op("Exp", g.op("Min", x, XIELU_EPS)), 1.0)
    steepness = g.op("Add", g.op("Softplus", alpha_n), XIELU_BETA)
    negative = g.op("Mul", g.op("Sub", grown, x), steepness)
    return g.op("Add", g.op("Where", g.op("Greater", x, 0.0), positive, negative), g.op("Mul", x, XIELU_BETA))
