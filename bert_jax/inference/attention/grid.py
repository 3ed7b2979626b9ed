"""The PNG of all attention weights: a row a layer, a column a head, a heat map each."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

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
