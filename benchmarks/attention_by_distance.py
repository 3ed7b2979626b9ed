"""Where the heads of a pretraining run look: the share of attention that goes to neighbours, checkpoint by checkpoint.

    python -m benchmarks.attention_by_distance RUN DATA

RUN is a run directory (keep=100 keeps its checkpoints), DATA its training data. Over 64 held-out examples, masked as
for an evaluation, it prints for each head the mean attention that a token gives to the token before it, to itself, to
the token after it, and to all [SEP] together. A head that ignores positions gives each of 127 other tokens 0.008.
"""

import argparse

import numpy as np

from bert_jax.data.pretraining.batches import Batches
from bert_jax.formats.load import load
from bert_jax.model.heads import HEADS
from bert_jax.training.checkpoint.checkpoints import Checkpoints

LENGTH, ROWS = 128, 64


def shares(attention_BHLM: np.ndarray, mask_BL: np.ndarray, is_sep_BL: np.ndarray) -> dict[str, np.ndarray]:
    """Mean attention [H] from tokens other than padding to their neighbours, themselves and [SEP]."""
    found = {}
    for name, distance in (("before", -1), ("itself", 0), ("after", 1)):
        at = np.arange(max(0, -distance), LENGTH - max(0, distance))
        both = (mask_BL[:, at] * mask_BL[:, at + distance]).astype(bool)
        found[name] = np.array([head[:, at, at + distance][both].mean() for head in attention_BHLM.swapaxes(0, 1)])
    to_sep_BHL = np.einsum("bhlm,bm->bhl", attention_BHLM, is_sep_BL.astype(np.float32))
    found["[SEP]"] = np.array([head[mask_BL.astype(bool)].mean() for head in to_sep_BHL.swapaxes(0, 1)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("data")
    arguments = parser.parse_args()
    batches = Batches(arguments.data, split="held-out", batch_size=ROWS, max_seq_length=LENGTH, shuffle=False, seed=0)
    batch = batches.batch(0)
    with Checkpoints(f"{arguments.run}/checkpoints") as checkpoints:
        steps = checkpoints.steps()
    print(f"{'step':>7}  {'layer, head':>11}  {'before':>7} {'itself':>7} {'after':>7} {'[SEP]':>7}")
    for step in sorted(steps):
        config, params, tokenizer, _ = load(arguments.run, head="mlm", step=step)
        assert tokenizer is not None
        inputs = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        output = HEADS["mlm"](config).apply({"params": params}, *inputs, output_attentions=True)
        for layer, attention in enumerate(output.attentions):  # pyright: ignore[reportAttributeAccessIssue]
            is_sep = batch["input_ids"] == tokenizer.sep_token_id
            found = shares(np.asarray(attention, np.float32), batch["attention_mask"], is_sep)
            for head in range(config.num_attention_heads):
                row = " ".join(f"{values[head]:7.3f}" for values in found.values())
                print(f"{step:7,}  {layer:>8}, {head}  {row}")


if __name__ == "__main__":
    main()
