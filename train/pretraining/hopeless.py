"""When a pretraining run is hopeless: it has learnt no more than how frequent each token is, or it has diverged."""

ON_THE_LINE = 0.02
"""Nats below the unigram loss that count as no better than it: less than a small held-out part can tell."""
RISEN = 1.0
"""Nats above the lowest held-out loss of the run at this length that count as diverged."""


def why_hopeless(loss: float, lowest: float, unigram: float | None) -> str | None:
    """The reason to end a run after an evaluation; None to go on.

    Args:
        loss: held-out masked-LM loss, nats.
        lowest: the lowest so far of evaluations at the same length, this one with them.
        unigram: the loss of the token frequencies alone; None if it is unknown.
    """
    if not loss <= lowest + RISEN:  # NaN too
        return f"the held-out loss is {loss:.3f}, and was {lowest:.3f} before: the run has diverged"
    if unigram is not None and loss > unigram - ON_THE_LINE:
        return (
            f"the held-out loss is {loss:.3f}, and token frequencies alone have {unigram:.3f}: nothing else is learnt"
        )
    return None
