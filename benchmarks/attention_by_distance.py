"""Where the heads of a pretraining run look: the share of attention that goes to neighbours, checkpoint by checkpoint.

    python -m benchmarks.attention_by_distance RUN DATA [--picture FILE.png [--layer N]]

RUN is a run directory (keep=100 keeps its checkpoints), DATA its training data. Over 64 held-out examples of the length
of its last phase, masked as for an evaluation, it prints for each head the mean attention that a token gives to the
token before it, to itself, to the token after it, to its equals elsewhere in the row (of tokens that have some; special
ones do not count), and to all [SEP] together. Step 0 is the model as it was drawn. A head that ignores positions gives
each token of a row of 128 a share of 0.008.

The picture has the heads of a layer, 0 if not said, as they were drawn and as they are at the last step, on one row and
by distance.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.batches import Batches
from bert_jax.formats.load import load
from bert_jax.model.heads import HEADS
from bert_jax.model.start import StartConfig, draw
from bert_jax.training.checkpoint.checkpoints import Checkpoints

ROWS, FARTHEST = 64, 8


def at_distance(attention_BHLM: np.ndarray, mask_BL: np.ndarray, distance: int) -> np.ndarray:
    """Mean attention [H] from tokens other than padding to the one so many tokens on."""
    at = np.arange(max(0, -distance), mask_BL.shape[1] - max(0, distance))
    both = (mask_BL[:, at] * mask_BL[:, at + distance]).astype(bool)
    return np.array([head[:, at, at + distance][both].mean() for head in attention_BHLM.swapaxes(0, 1)])


def equals(ids_BL: np.ndarray, special_BL: np.ndarray) -> np.ndarray:
    """Which tokens are the same elsewhere in the row, bool [B, L, L]; special ones and padding are the same as none."""
    same_BLM = ids_BL[:, :, None] == ids_BL[:, None, :]
    return same_BLM & ~special_BL[:, :, None] & ~np.eye(ids_BL.shape[1], dtype=bool)


def to_equals(attention_BHLM: np.ndarray, equals_BLM: np.ndarray) -> np.ndarray:
    """Mean attention [H] of the tokens with equals elsewhere in the row to all of these together."""
    share_BHL = np.einsum("bhlm,blm->bhl", attention_BHLM, equals_BLM.astype(np.float32))
    return share_BHL.swapaxes(0, 1)[:, equals_BLM.any(axis=2)].mean(axis=1)


def shares(
    attention_BHLM: np.ndarray, mask_BL: np.ndarray, is_sep_BL: np.ndarray, equals_BLM: np.ndarray
) -> dict[str, np.ndarray]:
    """Mean attention [H] from tokens other than padding to their neighbours, themselves, their equals and [SEP]."""
    of_distances = (("before", -1), ("itself", 0), ("after", 1))
    found = {name: at_distance(attention_BHLM, mask_BL, distance) for name, distance in of_distances}
    found["equals"] = to_equals(attention_BHLM, equals_BLM)
    to_sep_BHL = np.einsum("bhlm,bm->bhl", attention_BHLM, is_sep_BL.astype(np.float32))
    found["[SEP]"] = np.array([head[mask_BL.astype(bool)].mean() for head in to_sep_BHL.swapaxes(0, 1)])
    return found


def models(run: str, data: str) -> Iterator[tuple[int, BertConfig, Any]]:
    """(step, config, parameters): as the run drew them, if it did, then of each checkpoint."""
    saved = json.loads(Path(run, "config.json").read_text())
    if saved["init"] is None:
        config = BertConfig.from_json(saved["model"])
        key, _ = jax.random.split(jax.random.key(saved["seed"]))
        counts = np.load(Path(data, "unigram_counts.npy"))
        yield 0, config, draw(key, HEADS["mlm"](config), StartConfig(**saved["start"]), counts)
    with Checkpoints(f"{run}/checkpoints") as checkpoints:
        steps = sorted(checkpoints.steps())
    for step in steps:
        config, params, *_ = load(run, head="mlm", step=step)
        yield step, config, params


def draw_picture(path: str, found: dict[int, np.ndarray], mask_BL: np.ndarray, equals_BLM: np.ndarray) -> None:
    """`found`: step -> attention [B, H, L, L] of a layer, at the first and the last step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heads, row = next(iter(found.values())).shape[1], int(mask_BL.sum(axis=1).argmax())
    of_equals = [to_equals(attention_BHLM, equals_BLM) for attention_BHLM in found.values()]
    shown, distances = slice(0, 24), range(-FARTHEST, FARTHEST + 1)
    figure, axes = pyplot.subplots(heads, 3, figsize=(10, 3.2 * heads), squeeze=False, layout="constrained")
    for column, (step, attention_BHLM) in enumerate(found.items()):
        name = f"step {step:,}" if step else "as drawn"
        by_distance = np.array([at_distance(attention_BHLM, mask_BL, distance) for distance in distances])
        for head in range(heads):
            axes[head, column].imshow(attention_BHLM[row, head, shown, shown], vmin=0, vmax=1, cmap="Blues")
            axes[head, column].set(title=f"head {head}, {name}", xlabel="looks at position", ylabel="position")
            axes[head, 2].plot(distances, by_distance[:, head], marker="o", markersize=3, label=name)
    for head in range(heads):
        same = ", then ".join(f"{share_H[head]:.0%}" for share_H in of_equals)
        title = f"head {head}, mean of {ROWS} rows\nto equals elsewhere {same}"
        axes[head, 2].set(title=title, xlabel="distance in tokens", ylabel="attention")
        axes[head, 2].set_ylim(0, 1)
        axes[head, 2].legend()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("--picture")
    parser.add_argument("--layer", type=int, default=0, help="of the picture; 0 is the first")
    arguments = parser.parse_args()
    saved = json.loads(Path(arguments.run, "config.json").read_text())
    if not 0 <= arguments.layer < (layers := saved["model"]["num_hidden_layers"]):
        parser.error(f"--layer: found {arguments.layer}; the model has layers 0 to {layers - 1}")
    length = saved["phases"][-1][0]
    batches = Batches(arguments.data, split="held-out", batch_size=ROWS, max_seq_length=length, shuffle=False, seed=0)
    batch = batches.batch(0)
    tokenizer = load(arguments.run, head="mlm").tokenizer
    assert tokenizer is not None
    is_sep_BL = batch["input_ids"] == tokenizer.sep_token_id
    equals_BLM = equals(batch["input_ids"], np.isin(batch["input_ids"], tokenizer.all_special_ids))
    shown: dict[int, np.ndarray] = {}
    print(f"{'step':>7}  {'layer, head':>11}  {'before':>7} {'itself':>7} {'after':>7} {'equals':>7} {'[SEP]':>7}")
    for step, config, params in models(arguments.run, arguments.data):
        inputs = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        output: Any = HEADS["mlm"](config).apply({"params": params}, *inputs, output_attentions=True)
        attentions = [np.asarray(attention, np.float32) for attention in output.attentions]
        shown[step] = attentions[arguments.layer]
        for layer, attention in enumerate(attentions):
            found = shares(attention, batch["attention_mask"], is_sep_BL, equals_BLM)
            for head in range(config.num_attention_heads):
                row = " ".join(f"{values[head]:7.3f}" for values in found.values())
                print(f"{step:7,}  {layer:>8}, {head}  {row}")
    if arguments.picture:
        ends = {step: shown[step] for step in (min(shown), max(shown))}
        draw_picture(arguments.picture, ends, batch["attention_mask"], equals_BLM)


if __name__ == "__main__":
    main()
