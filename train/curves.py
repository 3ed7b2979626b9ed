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
    ((loss, accuracy), (rate, norm)) = figure.subplots(2, 2)
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
    _line(rate, train, "learning_rate", "", color="tab:green")
    rate.set_title("learning rate")
    _line(norm, train, "grad_norm", "", color="tab:red")
    norm.set_title("gradient norm before clipping")
    norm.set_yscale("log")
    for axes in (loss, accuracy, rate, norm):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes, place in ((loss, "upper right"), (accuracy, "upper center")):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc=place, ncols=2)
    png = io.BytesIO()
    figure.savefig(png, dpi=110, format="png")
    path.write_bytes(png.getvalue())


def _line(axes, rows: list[dict], name: str, label: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)
