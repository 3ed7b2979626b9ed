"""transformers' BertForPreTraining in PyTorch: a training step, as its users run it or at its best setting.

    python -m benchmarks.rivals.torch_step FOLDER {users,best,best-float32,uncompiled,uncompiled-float32}

`users`: the library's defaults in float32, logits at all positions, the fused AdamW that its Trainer takes; nothing
compiled. `best`: only the predicted positions go into the masked-LM head, bfloat16 by autocast, SDPA, torch.compile,
fused AdamW. `uncompiled`: the same without torch.compile, which on some sizes is the faster one. `-float32`: without
autocast. On a GPU, if torch sees one.

FOLDER: config.json and batch.npz of benchmarks/train_step.py.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from benchmarks.rivals.serving import serve


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = BertForPreTraining(BertConfig.from_json_file(folder / "config.json")).to(device)
    model.train()
    assert model.config._attn_implementation == "sdpa"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    arrays = np.load(folder / "batch.npz")
    batch = {name: torch.from_numpy(array.astype(np.int64)).to(device) for name, array in arrays.items()}
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    positions = batch["mlm_positions"]
    labels = batch["mlm_labels"].masked_fill(batch["mlm_weights"] == 0, -100)
    everywhere = torch.full_like(batch["input_ids"], -100).scatter_(1, positions, labels)

    def all_positions() -> torch.Tensor:
        return model(**inputs, labels=everywhere, next_sentence_label=batch["next_sentence_label"]).loss

    def predicted_positions() -> torch.Tensor:
        encoded = model.bert(**inputs)
        hidden = encoded.last_hidden_state
        hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)
        mlm_logits, nsp_logits = model.cls(hidden, encoded.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(mlm_logits.float(), labels.flatten()) + cross_entropy(
            nsp_logits.float(), batch["next_sentence_label"]
        )

    loss_of = all_positions if mode == "users" else predicted_positions
    if mode.startswith("best"):
        loss_of = torch.compile(loss_of)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        bfloat16 = torch.autocast(device, dtype=torch.bfloat16)
        with bfloat16 if mode in ("best", "uncompiled") else contextlib.nullcontext():
            loss = loss_of()
        loss.backward()
        optimizer.step()

    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    start = time.perf_counter()
    step()
    finish()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    serve(step, finish, ready_in=time.perf_counter() - start, device_bytes=peak)


if __name__ == "__main__":
    main()
