"""The PNG of all attention weights: a row a layer, a column a head, a heat map each."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.inference.attention_maps import AttentionMaps

_LABELLED = 24  # tokens of a text whose maps still have room for their names
_LONGEST_NAME = 14  # characters
_WIDEST = 60.0  # inches


def draw_grid(maps: "AttentionMaps", path: Path) -> Path:
    """Draw one text's maps: queries from top to bottom, keys from left to right, tokens named if there are few.

    The colour grows with the square root of the weight, so that a weight of 1/16 is still a quarter of the way.

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
    except ImportError:
        raise UserError("drawing attention needs the package matplotlib: pip install 'bert-jax[train]'") from None
    layers, heads, length, _ = maps.attentions.shape
    named = length <= _LABELLED
    side = min(max(1.1, 0.16 * length if named else 1.6), _WIDEST / max(layers, heads))
    margin = 0.9 if named else 0.4
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
            image = axes.imshow(maps.attentions[layer, head], norm=norm, cmap="Blues", interpolation="nearest")
            if named and head == 0:
                axes.set_yticks(range(length), names, fontsize=6)
                axes.tick_params(length=0, pad=1)
            if named and layer == layers - 1:
                axes.set_xticks(range(length), names, fontsize=6, rotation=90)
                axes.tick_params(length=0, pad=1)
    if image is not None:
        figure.colorbar(image, ax=grid, label="weight", shrink=min(1.0, 3 / layers + 0.2), pad=0.01)
    with warnings.catch_warnings():
        # The font that matplotlib brings has no Chinese: there a box is drawn.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, format="png", dpi=120)
    return path


def _name(token: str) -> str:
    """A token that takes little room, on one line; a "$" would begin a formula."""
    shown = token if len(token) <= _LONGEST_NAME else token[: _LONGEST_NAME - 1] + "…"
    return "".join(c if c.isprintable() else "·" for c in shown).replace("$", r"\$")
