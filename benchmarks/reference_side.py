"""transformers' side of `reference_curve`: its model, with torch's AdamW, schedule and clipping set to our recipe."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bert_jax.training.optimizer import OptimizerConfig

Batch = dict[str, np.ndarray]


class Theirs:
    """transformers' model and torch's optimizer, set to do what `OptimizerConfig` says."""

    def __init__(self, config: OptimizerConfig, folder: Path, seed: int, norm_in: torch.dtype = torch.float64):
        torch.manual_seed(seed)
        self._clip_norm, self._norm_in = config.clip_norm, norm_in
        self.load(folder)
        self.optimizer = their_optimizer(self.model, config)
        self.scheduler = their_scheduler(self.optimizer, config)

    def step(self, batch: Batch) -> float:
        """Σ w · nll / Σ w of the masked positions, plus the mean over the sentence pairs."""
        self.model.train()
        sums = their_sums(self.model, batch)
        loss = sums["mlm_loss_sum"] / sums["mlm_weight"] + sums["nsp_loss_sum"] / sums["nsp_count"]
        self.optimizer.zero_grad()
        loss.backward()
        self._clip()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def _clip(self) -> None:
        """`clip_grad_norm_` with a choice of precision: in float32 a word table's norm was off by 2e-4."""
        parameters = list(self.model.parameters())
        norm = torch.nn.utils.get_total_norm([p.grad.to(self._norm_in) for p in parameters])
        torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm.float())

    def sums(self, batch: Batch) -> dict[str, Any]:
        self.model.eval()
        with torch.no_grad():
            return their_sums(self.model, batch)

    def move(self, share: float) -> None:
        """Multiplies each weight by 1 + share * a normal draw."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 + share * torch.randn_like(parameter))

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        options: dict[str, Any] = {"attn_implementation": "eager", "output_loading_info": True}
        loaded: Any = transformers.BertForPreTraining.from_pretrained(folder, **options)
        self.model, said = loaded
        assert not any(said[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def their_sums(model: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """The result of `pretraining_sums` for transformers' modules; the masked-LM head sees only the masked positions."""
    ids, types, attended, positions, labels, pairs = (
        torch.from_numpy(batch[name].astype(np.int64))
        for name in (
            "input_ids",
            "token_type_ids",
            "attention_mask",
            "mlm_positions",
            "mlm_labels",
            "next_sentence_label",
        )
    )
    weights = torch.from_numpy(batch["mlm_weights"])
    hidden = model.bert(input_ids=ids, token_type_ids=types, attention_mask=attended)
    rows = torch.arange(len(ids))[:, None]
    chosen = hidden.last_hidden_state[rows, positions]
    mlm, nsp = model.cls(chosen, hidden.pooler_output)
    nll = torch.nn.functional.cross_entropy(mlm.flatten(0, 1), labels.flatten(), reduction="none")
    return {
        "mlm_loss_sum": (nll * weights.flatten()).sum(),
        "mlm_weight": weights.sum(),
        "mlm_correct": ((mlm.argmax(-1) == labels) * weights).sum(),
        "nsp_loss_sum": torch.nn.functional.cross_entropy(nsp, pairs, reduction="sum"),
        "nsp_count": (pairs >= 0).sum(),
        "nsp_correct": (nsp.argmax(-1) == pairs).sum(),
    }


def their_optimizer(model: Any, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with the usual two groups: biases and LayerNorm are not decayed.

    torch always corrects the moments' bias. Where our rule does not, the step's eps and weight decay are rescaled so
    that torch's update equals m / (sqrt(v) + eps) + weight_decay * w; `their_scheduler` rescales the rate.
    """
    kept = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    ids = {id(p) for p in kept}
    decayed = [p for p in model.parameters() if id(p) not in ids]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.b1, config.b2), eps=config.eps)
    count = 0

    def uncorrect(*_: Any) -> None:
        nonlocal count
        count += 1
        c1, c2 = corrections(config, count)
        decayed_group, kept_group = optimizer.param_groups
        decayed_group["eps"] = kept_group["eps"] = config.eps / c2
        decayed_group["weight_decay"] = config.weight_decay * c2 / c1

    if not config.bias_correction:
        optimizer.register_step_pre_hook(uncorrect)
    return optimizer


def their_scheduler(optimizer: torch.optim.AdamW, config: OptimizerConfig) -> torch.optim.lr_scheduler.LambdaLR:
    """transformers' own linear schedule if the decay starts after warm-up, else that of Google's optimization.py."""
    warmup, total = config.warm_up, config.total_steps
    if config.decay_from == "warmup":
        return transformers.get_linear_schedule_with_warmup(optimizer, warmup, total)

    def factor(step: int) -> float:
        rate = step / warmup if step < warmup else 1 - min(step, total) / total
        c1, c2 = (1.0, 1.0) if config.bias_correction else corrections(config, step + 1)
        return rate * c1 / c2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def corrections(config: OptimizerConfig, count: int) -> tuple[float, float]:
    """What Adam divides m and sqrt(v) by at update 1, 2, ..."""
    return 1 - config.b1**count, math.sqrt(1 - config.b2**count)
