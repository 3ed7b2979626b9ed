"""The page that attention weights are walked through in: one HTML file that carries its data and makes no request."""

import base64
import hashlib
import html
import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bert_jax.inference.attention.maps import AttentionMaps

FINE_WEIGHTS = 800_000  # up to so many weights are written in 16 bits


class Coded(NamedTuple):
    """Weights as a page carries them.

    Attributes:
        levels: the largest code.
        power: a weight is (code / levels) ** power.
        data: the codes, row-major, as bytes; of two bytes a code all low bytes first, then all high ones (which
            deflate then finds alike); raw deflate (RFC 1951), base64.
    """

    levels: int
    power: int
    data: str


def page_of(maps: "AttentionMaps") -> str:
    """The page: an overview of all heads, one head as lines and as a heat map, filters.

    No request leaves it, which its Content-Security-Policy holds it to: only the script and the style it came with are
    run, by their sha256. What is text comes in as JSON and is shown as text, so that a token such as "</script>" does
    nothing. `#layer=2&head=1&token=3` opens it there (`side=to`: by whom the token is looked at; `other=5`: how much at
    that one; `average=1`, `special=hide`, `normalise=1`, `pair=ab`).

    The weights are rounded (`coded`); the page says how far.

    Args:
        maps: of one text or pair.

    Returns:
        HTML, ready to be written as UTF-8.
    """
    layers, heads, _, _ = maps.attentions.shape
    data = {
        "model": maps.model,
        "texts": [maps.text] if maps.text_pair is None else [maps.text, maps.text_pair],
        "tokens": maps.shown,
        "segments": maps.segments.tolist(),
        "special": maps.special.astype(int).tolist(),
        "hasHead": maps.has_head.astype(int).tolist(),
        "layers": layers,
        "heads": heads,
        "weights": coded(maps.attentions)._asdict(),
    }
    style = _file("page.css")
    script = "(() => {\n" + _file("page_weights.js") + _file("page.js") + "})();\n"
    values = {
        "TITLE": html.escape(f"Attention: {maps.text}"[:100]),
        "POLICY": f"default-src 'none'; img-src data:; script-src {_source(script)}; style-src {_source(style)}",
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _json(data),
    }
    return re.sub(r"<!--(TITLE|POLICY|STYLE|SCRIPT|DATA)-->", lambda found: values[found[1]], _file("page.html"))


def coded(weights: np.ndarray) -> Coded:
    """Weights between 0 and 1 as codes: 16 bits for up to `FINE_WEIGHTS` of them, else 8 bits of their square root.

    The first are off by at most 1 / 131070. Of the second a weight w is off by about sqrt(w) / 255 at most: 0.0039 at
    1, 0.0004 at 0.01. In proportion to w it would be 0.002 everywhere, and 512 tokens share a weight of 1.
    """
    levels, power = (65535, 1) if weights.size <= FINE_WEIGHTS else (255, 2)
    root = weights.ravel() if power == 1 else np.sqrt(weights.ravel())
    codes = np.rint(np.clip(root, 0, 1) * levels).astype(np.uint16)
    planes = [(codes & 255).astype(np.uint8), (codes >> 8).astype(np.uint8)][: 2 if power == 1 else 1]
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(b"".join(plane.tobytes() for plane in planes)) + deflate.flush()
    return Coded(levels, power, base64.b64encode(packed).decode("ascii"))


def _json(value: Any) -> str:
    """JSON that is plain text to an HTML parser too: ASCII, without <, > and &."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
