"""Whether a model finds a masked token of one sentence in another, and by what.

    python -m benchmarks.copying MODEL [--sentences FILE]

Each token of a sentence but the last is masked in turn. It prints the mean probability of the token: in the sentence
alone, with the whole sentence as B, and with that after more tokens, with its second half first, and backwards. A model
that copies by place loses it in the last two; one that looks for what is the same keeps it where the halves change
places. FILE has a sentence a line; without it there are four.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import load

SENTENCES = (
    "The old bridge was built by a local family in the summer.",
    "She moved to the city and became a teacher of music.",
    "The museum contains a large collection of paintings and coins.",
    "A group of soldiers crossed the river before the storm.",
)
BEFORE = "in the end,"


def seconds(before: list[int]) -> dict[str, Callable[[list[int]], list[int]]]:
    """What B is, made from the tokens of the sentence."""
    return {
        "alone": lambda ids: [],
        "beside its double": lambda ids: ids,
        f"with {len(before)} tokens before the double": lambda ids: before + ids,
        "with its second half first": lambda ids: ids[len(ids) // 2 :] + ids[: len(ids) // 2],
        "with the double backwards": lambda ids: ids[::-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sentences", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    loaded = load(arguments.model, head="mlm")
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    lines = arguments.sentences.read_text(encoding="utf-8").splitlines() if arguments.sentences else SENTENCES
    cls, sep, mask = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id)
    sentences = [ids for line in lines if len(ids := tokenizer.encode(line, add_special_tokens=False)) > 1]
    before = tokenizer.encode(BEFORE, add_special_tokens=False)
    length = 2 * max(map(len, sentences)) + len(before) + 3

    @jax.jit
    def probabilities(params, input_ids, attention_mask, token_type_ids):
        output: Any = loaded.model.apply({"params": params}, input_ids, attention_mask, token_type_ids)
        return jax.nn.softmax(output.prediction_logits.astype("float32"))

    for name, second in seconds(before).items():
        found: list[float] = []
        for ids in sentences:
            b = second(ids)
            row = np.array([cls, *ids, sep, *b, *([sep] if b else [])])
            types = np.arange(len(row)) >= len(ids) + 2
            at = np.arange(len(ids) - 1)
            batch = np.zeros((3, len(at), length), np.int32)
            batch[0, :, : len(row)], batch[1, :, : len(row)], batch[2, :, : len(row)] = row, 1, types
            batch[0, at, at + 1] = mask
            found += np.asarray(probabilities(loaded.params, *batch))[at, at + 1, np.array(ids)[at]].tolist()
        print(f"{np.mean(found):.4f}  {name}")


if __name__ == "__main__":
    main()
