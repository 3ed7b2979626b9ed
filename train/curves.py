"""`curves.png`: the loss, the accuracies, the learning rate and the gradient norm of a run, for people to look at."""

import io

from etils import epath


def draw_curves(records: list[dict], path: epath.Path) -> None:
    """Draws the records of `metrics.jsonl` into the PNG `path`; no file where fewer than two training rows exist."""
    train = [row for row in records if row["kind"] == "train"]
    evaluations = [row for row in records if row["kind"] == "eval"]
    if len(train) < 2:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    ((loss, score), (rate, norm)) = figure.subplots(2, 2)
    if any("mlm_loss" in row for row in train):
        _draw_pretraining(loss, score, train, evaluations)
    else:
        _draw_task(loss, score, train, evaluations)
    _line(rate, train, "learning_rate", "", color="tab:green")
    rate.set_title("learning rate")
    _line(norm, train, "grad_norm", "", color="tab:red")
    norm.set_title("gradient norm before clipping")
    norm.set_yscale("log")
    for axes in (loss, score, rate, norm):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes, place in ((loss, "upper right"), (score, "best")):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc=place, ncols=2)
    png = io.BytesIO()
    figure.savefig(png, dpi=110, format="png")
    path.write_bytes(png.getvalue())


def _draw_pretraining(loss, accuracy, train: list[dict], evaluations: list[dict]) -> None:
    _line(loss, train, "mlm_loss", "training", color="tab:blue", alpha=0.5)
    _line(loss, evaluations, "mlm_loss", "held-out", color="tab:blue", marker="o", markersize=3)
    _line(loss, evaluations, "unigram_loss", "unigram baseline", color="gray", linestyle="--")
    loss.set_title("masked LM loss (nats a masked token)")
    _line(accuracy, train, "mlm_accuracy", "masked LM, training", color="tab:blue", alpha=0.5)
    _line(
        accuracy,
        evaluations,
        "mlm_accuracy",
        "masked LM, held-out",
        color="tab:blue",
        marker="o",
        markersize=3,
    )
    _line(accuracy, evaluations, "unigram_accuracy", "most frequent token", color="tab:blue", linestyle="--")
    _line(accuracy, train, "nsp_accuracy", "next sentence, training", color="tab:orange", alpha=0.5)
    _line(
        accuracy,
        evaluations,
        "nsp_accuracy",
        "next sentence, held-out",
        color="tab:orange",
        marker="o",
        markersize=3,
    )
    _line(accuracy, evaluations, "majority_accuracy", "majority class", color="tab:orange", linestyle="--")
    accuracy.set_title("accuracy")
    accuracy.set_ylim(0, 1)


def _draw_task(loss, score, train: list[dict], evaluations: list[dict]) -> None:
    """The loss, and every score of the first file that is evaluated; those in percent as shares."""
    _line(loss, train, "loss", "training", color="tab:blue", alpha=0.5)
    _line(loss, evaluations, "loss", "held-out", color="tab:blue", marker="o", markersize=3)
    loss.set_title("loss")
    names = [name for name in (evaluations[0] if evaluations else {}) if name in _SCORES]
    for name in names:
        scale = 100 if max(row[name] or 0 for row in evaluations) > 1 else 1
        rows = [row | {name: row[name] / scale} for row in evaluations if row.get(name) is not None]
        _line(score, rows, name, name.replace("_", " "), marker="o", markersize=3)
    score.set_title("held-out scores")


_SCORES = (
    *("accuracy", "f1", "macro_f1", "micro_f1", "matthews_correlation", "spearman", "pearson"),
    *("exact_match", "exact", "precision", "recall", "tag_accuracy"),
)


def _line(axes, rows: list[dict], name: str, label: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)
