"""The picture of how preparing grows: measured points, and a line for the law that they should follow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def draw(
    path: Path,
    by_size: Sequence[tuple[float, float, float]],
    by_workers: Sequence[tuple[int, float]],
    workers: int,
) -> None:
    """Three panels in one PNG.

    by_size: (MB of text, CPU seconds, peak MB) with `workers` workers; by_workers: (workers, peak MB) with all text.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes, seconds, memory = np.array(by_size).T
    counts, memory_of = np.array(by_workers).T
    panels = [
        ("time: linear in the text", "MB of text", "CPU seconds", sizes, seconds, np.polyfit(sizes, seconds, 1)),
        ("memory: largest measured", "MB of text", "peak MB", sizes, memory, [memory.max()]),
        ("memory: linear in the workers", "workers", "peak MB", counts, memory_of, np.polyfit(counts, memory_of, 1)),
    ]
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, (title, x_label, y_label, x, y, law) in zip(axes, panels, strict=True):
        line = np.array([0, x.max() * 1.05])
        axis.plot(line, np.polyval(law, line), color="0.6", label="law")
        axis.plot(x, y, "o", color="tab:blue", label="measured")
        axis.set(title=title, xlabel=x_label, ylabel=y_label, xlim=(0, None), ylim=(0, 1.15 * y.max()))
    axes[0].legend(loc="upper left")
    figure.suptitle(f"train.prepare, dupe_factor 10, length 128, {workers} workers where the text grows", fontsize=10)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)
