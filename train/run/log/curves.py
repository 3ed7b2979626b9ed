"""`curves.png` of a run: loss, scores, learning rate and gradient norm by step, with the baselines."""

import io
from typing import TYPE_CHECKING

from etils import epath

from bert_jax.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(records: list[dict], path: epath.Path) -> None:
    """Draws the records of `metrics.jsonl` into the PNG `path`, if there are at least two training rows."""
    if sum(row["kind"] == "train" for row in records) > 1:
        write_whole(path, png_of(records))


def png_of(records: list[dict]) -> bytes:
    """The picture of `curves_of`, as the bytes of a PNG of 1210 x 770 pixels."""
    return png(curves_of(records))


def png(figure: "Figure") -> bytes:
    """A figure as the bytes of a PNG, 110 dots an inch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    written = io.BytesIO()
    figure.savefig(written, dpi=110, format="png")
    return written.getvalue()


def curves_of(records: list[dict]) -> "Figure":
    """The picture: loss, scores, learning rate and gradient norm by step, with the baselines as dashed lines."""
    from matplotlib.figure import Figure

    train = [row for row in records if row["kind"] == "train"]
    evaluations = [row for row in records if row["kind"] == "eval"]
    figure = Figure(figsize=(11, 7))
    # Fixed: a layout that measures all labels doubles the time of a drawing.
    places = {"left": 0.075, "right": 0.985, "bottom": 0.07, "top": 0.95, "wspace": 0.18, "hspace": 0.27}
    ((loss, score), (rate, norm)) = figure.subplots(2, 2, gridspec_kw=places)
    if any("mlm_loss" in row for row in train):
        _draw_pretraining(loss, score, train, evaluations)
    else:
        _draw_task(loss, score, train, evaluations)
    _line(rate, train, "learning_rate", "", color="tab:green")
    rate.set_title("learning rate")
    rate.yaxis.set_major_formatter("{x:g}")
    _line(norm, train, "grad_norm", "", color="tab:red")
    norm.set_title("gradient norm before clipping")
    norm.set_yscale("log")
    _label_in_plain_numbers(norm.yaxis)
    for axes in (loss, score, rate, norm):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.set_visible(bool(axes.lines))
    for axes, place in ((loss, "upper right"), (score, "best")):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc=place, ncols=2)
    return figure


def _label_in_plain_numbers(axis) -> None:
    """A logarithmic axis has 2 and 3 where it spans less than a decade and a half, and not 2 x 10^0."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x, pos=None):
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(Plain(minor_thresholds=(1.5, 0.5)))


def _draw_pretraining(loss, accuracy, train: list[dict], evaluations: list[dict]) -> None:
    _line(loss, train, "mlm_loss", "training", color="tab:blue", alpha=0.5)
    _line(loss, evaluations, "mlm_loss", "held-out", color="tab:blue", **_POINTS)
    last = max(row["step"] for row in train)
    _baseline(loss, evaluations, "unigram_loss", "unigram baseline", last, color="gray")
    loss.set_title("masked LM loss (nats per masked token)")
    _line(accuracy, train, "mlm_accuracy", "masked LM, training", color="tab:blue", alpha=0.5)
    _line(accuracy, evaluations, "mlm_accuracy", "masked LM, held-out", color="tab:blue", **_POINTS)
    _baseline(accuracy, evaluations, "unigram_accuracy", "most frequent token", last, color="tab:blue")
    _line(accuracy, train, "nsp_accuracy", "next sentence, training", color="tab:orange", alpha=0.5)
    _line(accuracy, evaluations, "nsp_accuracy", "next sentence, held-out", color="tab:orange", **_POINTS)
    _baseline(accuracy, evaluations, "majority_accuracy", "majority class", last, color="tab:orange")
    _line(accuracy, evaluations, "blimp_accuracy", "BLiMP", color="tab:green", **_POINTS)
    scores = {name for row in evaluations for name in row if name.startswith(("probe_", "finetune_"))}
    shown = sorted(name for name in scores if not name.endswith(("_loss", "_error")))
    for number, name in enumerate(shown):
        _line(accuracy, evaluations, name, name.replace("_", " "), color=f"C{3 + number % 7}", **_POINTS)
    accuracy.set_title("accuracy")
    lowest = min((row[name] for row in evaluations for name in shown if row.get(name) is not None), default=0)
    accuracy.set_ylim(min(lowest, 0), 1)  # a correlation may be negative


def _draw_task(loss, score, train: list[dict], evaluations: list[dict]) -> None:
    """Draws the loss, every score of the first evaluated file with its baseline, and which evaluation chose the model.

    Of many runs in one program it draws the best score of all, and means over the runs of each learning rate. Divides
    scores in percent by 100.
    """
    seen = list(dict.fromkeys(name for row in (*train[:1], *evaluations) for name in row))
    for number, name in enumerate(name for name in seen if name == "loss" or name.startswith("loss_at_")):
        rate = name.removeprefix("loss").replace("_at_", " at ")
        _line(loss, train, name, f"training{rate}", color=f"C{number % 10}", alpha=0.5)
        _line(loss, evaluations, name, f"held-out{rate}", color=f"C{number % 10}", **_POINTS)
    loss.set_title("loss")
    last = max(row["step"] for row in train)
    _baseline(loss, evaluations, "baseline_mean_squared_error", "always the mean", last, color="gray")
    names = [name for name in seen if name.removesuffix("_best").partition("_at_")[0] in SCORES]
    for number, name in enumerate(names):
        alone, colour = name.removesuffix("_best"), f"C{number % 10}"
        both = name, f"baseline_{alone}"
        scale = 100 if any((row.get(one) or 0) > 1 for row in evaluations for one in both) else 1
        rows = [row | {one: row[one] / scale for one in both if row.get(one) is not None} for row in evaluations]
        _line(score, rows, name, name.replace("_", " "), color=colour, **_POINTS)
        if name in SCORES or name.endswith("_best"):
            _baseline(score, rows, both[1], f"{alone.replace('_', ' ')}, baseline", last, color=colour)
    if score.get_ylim()[0] < -1:  # the first R² of a run may be very low
        score.set_ylim(bottom=-1)
    score.set_title("held-out scores")
    if chosen := [row["step"] for row in evaluations if row.get("best")]:
        for axes in (loss, score):
            axes.axvline(chosen[-1], color="black", linestyle=":", label=f"the best model, step {chosen[-1]:,}")


SCORES = (
    *("accuracy", "f1", "macro_f1", "micro_f1", "matthews_correlation", "roc_auc", "average_precision"),
    *("r2", "spearman", "pearson"),
    *("exact_match", "exact", "precision", "recall", "tag_accuracy"),
)


_POINTS = {"marker": "o", "markersize": 3}


def _line(axes, rows: list[dict], name: str, label: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _baseline(axes, rows: list[dict], name: str, label: str, last: int, **style) -> None:
    """Draws a baseline from step 0 to `last`, so that it is there with a single evaluation too."""
    if known := [row for row in rows if row.get(name) is not None]:
        ends = (known[0] | {"step": 0}, known[-1] | {"step": last})
        _line(axes, [ends[0], *known, ends[1]], name, label, linestyle="--", **style)


def has_glyphs(text: str) -> bool:
    """Whether the font of the pictures has all characters of a text, such as a label or the name of a run."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return all(font.get_char_index(ord(character)) for character in text)
