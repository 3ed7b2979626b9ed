"""Attention weights to look at: a PNG of all heads, and one HTML page that carries its data and makes no request."""

import base64
import hashlib
import html
import json
import re
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.inference.attention.maps import AttentionMaps

_LABELLED = 36  # tokens of a text whose maps still have room for their names
_LONGEST_NAME = 14  # characters
_ROOM, _LEAST_ROOM = 0.11, 0.1  # inches for a token that is named
_WIDEST = 60.0  # inches
_DPI = 120
_MAP = 0.8  # of the room that a map has, what is at least left of it beside titles and gaps
# Asked in this order, where they are installed, for what the font that matplotlib brings has not.
CJK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans", "WenQuanYi Zen Hei"),
    *("NanumGothic", "Microsoft YaHei", "Malgun Gothic", "Yu Gothic", "PingFang SC", "Apple SD Gothic Neo"),
    *("Hiragino Sans", "Arial Unicode MS"),
)


def draw_grid(maps: "AttentionMaps", path: Path) -> Path:
    """Draw one text's maps: queries from top to bottom, keys from left to right, tokens named if there are few.

    The colour grows with the square root of the weight, so that a weight of 1/16 is still a quarter of the way. Where
    there are more tokens than pixels, a pixel has the largest of its weights.

    Args:
        maps: the weights, [N, H, L, L].
        path: the file, whatever its ending: PNG is what is written.

    Raises:
        UserError: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise UserError("drawing attention needs the package matplotlib: pip install 'bert-jax[train]'") from None
    layers, heads, length, _ = maps.attentions.shape
    largest = _WIDEST / max(layers, heads)
    named = length <= min(_LABELLED, largest / _LEAST_ROOM)
    side = min(max(1.1, _ROOM * length) if named else 1.6, largest)
    margin = 0.9 if named else 0.4
    pixels = int(_MAP * side * _DPI)
    size = min(9.0, 0.8 * 72 * side / length)  # points
    installed = set(fontManager.get_font_names())
    naming = {"fontsize": size, "fontfamily": ["DejaVu Sans", *(font for font in CJK_FONTS if font in installed)]}
    figure = Figure(figsize=(heads * side + margin + 0.8, layers * side + margin + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(layers, heads, squeeze=False)
    names = [_name(token) for token in maps.shown]
    norm = PowerNorm(0.5, 0, 1)
    image = None
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer, head]
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color("0.8")
            if layer == 0:
                axes.set_title(f"head {head}", fontsize=11)
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=11)
            if not maps.has_head[layer, head]:
                axes.set_aspect("equal")
                axes.text(0.5, 0.5, "pruned", ha="center", va="center", fontsize=7, transform=axes.transAxes)
                continue
            weights = _peaks(maps.attentions[layer, head], pixels)
            image = axes.imshow(weights, norm=norm, cmap="Blues", interpolation="nearest")
            if named and head == 0:
                axes.set_yticks(range(length), names, **naming)
                axes.tick_params(length=0, pad=1)
            if named and layer == layers - 1:
                axes.set_xticks(range(length), names, rotation=90, **naming)
                axes.tick_params(length=0, pad=1)
    if image is not None:
        figure.colorbar(
            image, ax=grid, label="weight of a row's token for a column's", shrink=min(1.0, 3 / layers + 0.2), pad=0.01
        )
    with warnings.catch_warnings():
        # Of what no font has, a box is drawn.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, format="png", dpi=_DPI)
    return path


def _peaks(weights: np.ndarray, most: int) -> np.ndarray:
    """[L, L] as at most `most` rows and columns, each the largest weight of those that fall on it."""
    length = len(weights)
    if length <= most:
        return weights
    starts = np.arange(most) * length // most
    return np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=0), starts, axis=1)


def _name(token: str) -> str:
    """A token that takes little room, on one line; a "$" would begin a formula."""
    shown = token if len(token) <= _LONGEST_NAME else token[: _LONGEST_NAME - 1] + "…"
    return "".join(c if c.isprintable() else "·" for c in shown).replace("$", r"\$")


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
