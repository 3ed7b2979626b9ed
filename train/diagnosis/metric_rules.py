"""What the metrics of a run may say is wrong: steps that are not finite, a wrong rate, too few steps, overfitting."""

import math

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from train.diagnosis.evidence import Evidence, Finding

SKIPPED = 0.001  # share of the steps
RISE = 0.3  # nats above the lowest loss
ABOVE_RANDOM = 1  # nats above a random model's loss
HIGH_RATE = 5e-3  # of AdamW, for a model 128 wide; less for a wider one in proportion
USUAL_RATE = 1e-3  # likewise, to advise
BELOW_UNIGRAM = 0.05  # nats; a loss that is lower shows that the model uses the context
ABOVE_LOWEST = 0.1  # nats; a held-out loss that is higher has risen, and not only moved
ABOVE_UNIGRAM = 0.25  # share of the way from the unigram line back to a random model
STEPS_AFTER_WARM_UP = 100


def find_in_metrics(run: Evidence, unigram: float | None) -> list[Finding]:
    """The findings on the metrics of a run. unigram: loss of a model that knows only how frequent each token is."""
    found = [_not_finite(run)]
    if run.is_pretraining:
        found += [_rate_too_high(run, unigram) or _rate_too_low(run, unigram) or _too_short(run) or _overfits(run)]
    return [finding for finding in found if finding]


def _not_finite(run: Evidence) -> Finding | None:
    skipped = max((row.get("skipped_total") or 0 for row in run.train), default=0)
    if skipped <= SKIPPED * run.step:
        return None
    return Finding(
        "not finite",
        f"{skipped:.0f} of {run.step:,} steps had a loss or gradient that is not finite, and changed nothing",
        "The numbers overflow: the rate is too high, or the precision too low.",
        f"In the command of a new run: {_rate(run, 0.5)}; or model.dtype=float32 if it is not",
    )


def _rate_too_high(run: Evidence, unigram: float | None) -> Finding | None:
    if (seen := _far_from_settled(run, unigram) or _worse_than_random(run)) is None:
        return None
    norms = [row["grad_norm"] for row in run.train if row.get("grad_norm") is not None]
    return Finding(
        "rate too high",
        f"{seen}; gradient norm {np.median(norms):.1f}, at most {max(norms):.1f}" if norms else seen,
        "The updates are so large that the model cannot settle: it guesses frequent tokens, or does worse.",
        f"In the command of a new run: {_rate(run, 0.2)} {_longer_warm_up(run)}",
    )


def _far_from_settled(run: Evidence, unigram: float | None) -> str | None:
    """What the training loss shows of a rate that is too high."""
    if len(run.curve) < 2:
        return None
    now, best = run.curve[-1], min(run.curve, key=lambda point: point.loss)
    optimizer = run.config["optimizer"]
    highest = HIGH_RATE * 128 / run.config["model"]["hidden_size"]
    if now.loss - best.loss > RISE:
        return f"the training loss was {best.loss:.2f} at step {best.step:,} and is {now.loss:.2f} at step {now.step:,}"
    if (
        unigram is not None
        and optimizer["name"] == "adamw"
        and optimizer["learning_rate"] > highest
        and now.step >= run.warm_up + STEPS_AFTER_WARM_UP
        and best.loss > unigram - BELOW_UNIGRAM
    ):
        return (
            f"the training loss is {now.loss:.2f} at step {now.step:,}, no better than guessing frequent tokens "
            f"({unigram:.2f}), at a rate of up to {optimizer['learning_rate']:g}; for this width the highest that is "
            f"known to work is about {highest:.1g}"
        )
    return None


def _worse_than_random(run: Evidence) -> str | None:
    """What the last evaluation shows of a run that was thrown off in its first steps, and never fell again."""
    last, random = run.evaluations[-1] if run.evaluations else {}, math.log(run.config["model"]["vocab_size"])
    if (loss := last.get("mlm_loss")) is None or loss <= random + ABOVE_RANDOM:
        return None
    return f"the held-out loss is {loss:.2f} at step {last['step']:,}, and a random model has {random:.2f}"


def _rate_too_low(run: Evidence, unigram: float | None) -> Finding | None:
    """A rate that works brings the loss from ln(V) to the unigram line soon, whatever comes after."""
    if unigram is None or run.config.get("init") is not None or len(run.curve) < 2:
        return None
    first, now = math.log(run.config["model"]["vocab_size"]), run.curve[-1]
    left = (now.loss - unigram) / max(first - unigram, 1e-9)
    if now.step < run.warm_up + STEPS_AFTER_WARM_UP or left < ABOVE_UNIGRAM:
        return None
    return Finding(
        "rate too low",
        f"the training loss is {now.loss:.2f} at step {now.step:,}, {now.step - run.warm_up:,} after the warm-up. "
        f"A random model has {first:.2f}; one that knows how frequent each token is, {unigram:.2f}",
        "At a rate that works, a model learns how frequent each token is in the first few hundred steps. At this one "
        "the run takes many times as long as it should.",
        f"In the command of a new run: {_rate(run, 10)}",
    )


def _too_short(run: Evidence) -> Finding | None:
    """On the unigram line a small model stays for a while; at the end of a run it is too late to leave it."""
    last, steps = run.evaluations[-1] if run.evaluations else {}, run.total_steps
    loss, unigram = last.get("mlm_loss"), last.get("unigram_loss")
    if loss is None or unigram is None or last["step"] < steps or loss < unigram - BELOW_UNIGRAM:
        return None
    start = "start.range=width start.positions=fourier start.heads='((0, -1, 1),)', which shortens that time"
    longer = "give it a longer stop_after" if run.config.get("stop_after") else "give it more steps in phases"
    can_be_wired = not run.config.get("start", {}).get("heads") and run.config.get("init") is None
    if can_be_wired:
        from bert_jax.model.start import StartConfig, check_start  # imports JAX

        try:
            wired = StartConfig(range="width", positions="fourier", heads=((0, -1, 1),))
            check_start(wired, BertConfig.from_json(run.config["model"]))
        except UserError:  # such as ALBERT, whose layers see no position table
            can_be_wired = False
    return Finding(
        "too short",
        f"the run has ended at a held-out loss of {loss:.2f}; guessing frequent tokens has {unigram:.2f}",
        "A small model stays on that line for a while before it uses the context, and this run ended before.",
        f"In the command of a new run: {longer}" + (f", or say {start}" if can_be_wired else ""),
    )


def _overfits(run: Evidence) -> Finding | None:
    """A held-out loss that rises while the training loss falls: more passes over so little text do harm."""
    scored = [row for row in run.evaluations if row["step"] > run.phase_start and row.get("mlm_loss") is not None]
    if not scored or not run.curve:
        return None
    best, last = min(scored, key=lambda row: row["mlm_loss"]), scored[-1]
    then = next((point for point in reversed(run.curve) if point.step <= best["step"]), run.curve[0])
    now = run.curve[-1]
    if last["mlm_loss"] - best["mlm_loss"] <= ABOVE_LOWEST or now.loss >= then.loss:
        return None
    dropout = "model.hidden_dropout_prob=0.1 model.attention_probs_dropout_prob=0.1 (it has none), or "
    if run.phase_dropout is not None:
        dropout = f"phases='{run.phases_with_dropout(0.1)}' (it has no dropout now), or "
    has_some = run.phase_dropout or (run.phase_dropout is None and run.config["model"]["hidden_dropout_prob"])
    return Finding(
        "overfits",
        f"the held-out loss was {best['mlm_loss']:.2f} at step {best['step']:,} and is {last['mlm_loss']:.2f} at step "
        f"{last['step']:,}, and the training loss fell from {then.loss:.2f} to {now.loss:.2f}",
        "The model learns its text by heart, and does worse on other text.",
        f"In the command of a new run: {'' if has_some else dropout}"
        f"phases='{run.phases_until(best['step'])}', or take more text",
    )


def _longer_warm_up(run: Evidence) -> str:
    """A tenth of the run if its warm-up is shorter, in words that a recipe with steps takes and one with a share.

    A run with `stop_after=`, whose length is not known before, takes steps alone: twice as many, or a tenth of those so
    far.
    """
    steps = run.total_steps
    if run.config.get("stop_after"):
        return f"optimizer.warmup_steps={max(2 * run.warm_up, run.step // 10)}"
    return f"optimizer.warmup_steps=none optimizer.warmup_share={max(run.warm_up / steps, 0.1):.2g}"


def _rate(run: Evidence, factor: float) -> str:
    """The rate times `factor`, or the usual one if that is further away; a tenth of it for a model that exists."""
    optimizer, width = run.config["optimizer"], run.config["model"]["hidden_size"]
    rate = optimizer["learning_rate"] * factor
    if optimizer["name"] != "lamb":  # the updates of the others have AdamW's size
        usual = USUAL_RATE * 128 / width / (1 if run.config.get("init") is None else 10)
        rate = (min if factor < 1 else max)(rate, usual)
    return f"optimizer.learning_rate={rate:.1g}"
