"""Draws attention weights: a PNG of all heads, and an HTML page that contains its data and makes no request."""

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

_LABELLED = 36  # the most tokens for which maps get labels
_LONGEST_NAME = 14  # characters of a label
_ROOM, _LEAST_ROOM = 0.11, 0.1  # inches per labelled token: usual and least
_WIDEST = 60.0  # inches
_DPI = 120
_MAP = 0.8  # the least share of a map's area that titles and gaps leave for it
# Fonts for characters that matplotlib's own font lacks, tried in this order if they are installed.
CJK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans", "WenQuanYi Zen Hei"),
    *("NanumGothic", "Microsoft YaHei", "Malgun Gothic", "Yu Gothic", "PingFang SC", "Apple SD Gothic Neo"),
    *("Hiragino Sans", "Arial Unicode MS"),
)


def draw_grid(maps: "AttentionMaps", path: Path) -> Path:
    """Draws the maps of one text: queries from top to bottom, keys from left to right, with labels for few tokens.

    The colour is proportional to the square root of the weight, so that a weight of 1/16 gets a quarter of the full
    colour. If there are more tokens than pixels, a pixel shows the largest of its weights.

    Args:
        maps: the weights, [N, H, L, L].
        path: the file to write; the format is PNG whatever its ending.

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
        # matplotlib draws a box for a character that no font has.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, format="png", dpi=_DPI)
    return path


def _peaks(weights: np.ndarray, most: int) -> np.ndarray:
    """Reduces [L, L] to at most `most` rows and columns; each cell is the largest of the weights that it covers."""
    length = len(weights)
    if length <= most:
        return weights
    starts = np.arange(most) * length // most
    return np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=0), starts, axis=1)


def _name(token: str) -> str:
    """A short one-line label for a token; "$" is escaped because it would begin a formula."""
    shown = token if len(token) <= _LONGEST_NAME else token[: _LONGEST_NAME - 1] + "…"
    return "".join(c if c.isprintable() else "·" for c in shown).replace("$", r"\$")


FINE_WEIGHTS = 800_000  # a page stores up to so many weights in 16 bits each, more in 8


class Coded(NamedTuple):
    """Weights as a page stores them.

    Attributes:
        levels: the largest code.
        power: a weight is (code / levels) ** power.
        data: the codes as bytes, row-major, compressed by raw deflate (RFC 1951), in base64. For codes of two bytes,
            all low bytes come first, then all high bytes, which compresses better.
    """

    levels: int
    power: int
    data: str


def page_of(maps: "AttentionMaps") -> str:
    """Builds the page: an overview of all heads, one head as lines and as a heat map, and filters.

    Its Content-Security-Policy forbids requests and allows only the page's own script and style, by their sha256. Texts
    are stored as JSON and displayed as text, so a token such as "</script>" has no effect. `#layer=2&head=1&token=3`
    opens the page there (`side=to`: who attends to the token; `other=5`: the weight for that token; `average=1`,
    `special=hide`, `normalise=1`, `pair=ab`).

    The weights are rounded by `coded`; the page shows by how much.

    Args:
        maps: the maps of one text or pair.

    Returns:
        HTML, to be written as UTF-8.
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
    """Encodes weights between 0 and 1: up to `FINE_WEIGHTS` of them in 16 bits each, more in 8 bits of the square root.

    With 16 bits the error is at most 1 / 131070. With 8 bits the error of a weight w is at most about sqrt(w) / 255:
    0.0039 at 1, 0.0004 at 0.01. Without the square root it would be 0.002 at every w, too much if 512 tokens share a
    weight of 1.
    """
    levels, power = (65535, 1) if weights.size <= FINE_WEIGHTS else (255, 2)
    root = weights.ravel() if power == 1 else np.sqrt(weights.ravel())
    codes = np.rint(np.clip(root, 0, 1) * levels).astype(np.uint16)
    planes = [(codes & 255).astype(np.uint8), (codes >> 8).astype(np.uint8)][: 2 if power == 1 else 1]
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(b"".join(plane.tobytes() for plane in planes)) + deflate.flush()
    return Coded(levels, power, base64.b64encode(packed).decode("ascii"))


def _json(value: Any) -> str:
    """JSON that an HTML parser reads as plain text: ASCII, without <, > and &."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
