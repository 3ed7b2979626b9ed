"""BLiMP: does a masked model find the grammatical sentence of a minimal pair the more probable one?"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.blimp_data import PairSet
from bert_jax.inference.likelihood import Likelihood


def evaluate(
    predict: Likelihood,
    sets: Sequence[PairSet],
    *,
    within_word_l2r: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """How many pairs of each set are right: those whose grammatical sentence has the higher pseudo-log-likelihood.

    A tie is wrong, and counted; sentences that are the same tokens are one, whatever they would be scored.

    Args:
        predict: the model.
        sets: what to score.
        within_word_l2r: as `Likelihood`.
        progress: called with (pairs done, of how many).

    Returns:
        accuracy: percent, the mean over the sets; phenomena, fields: name -> the mean over their sets, as BLiMP's own
        tables have it; sets: name -> {accuracy, pairs, ties, phenomenon, field}; pairs, ties: how many in all; model;
        score; note: None, or that not all pairs of the sets were scored.

    Raises:
        UserError: a sentence that cannot be scored, with its set and number.
    """
    differences = _differences(predict, sets, within_word_l2r)
    total, done = sum(len(one.pairs) for one in sets), 0
    found: dict[str, dict[str, Any]] = {}
    for one in sets:
        values = np.fromiter(islice(differences, len(one.pairs)), np.float64, len(one.pairs))
        found[one.name] = {
            "accuracy": 100.0 * float((values > 0).mean()),
            "pairs": len(values),
            "ties": int((values == 0).sum()),
            "phenomenon": one.phenomenon,
            "field": one.field,
        }
        progress(done := done + len(values), total)
    return {
        "model": predict.source,
        "score": "pseudo-log-likelihood" + (", later tokens of a word hidden with it" if within_word_l2r else ""),
        "note": _note(sets),
        "accuracy": _mean(found.values()),
        "pairs": total,
        "ties": sum(row["ties"] for row in found.values()),
        "fields": _means(found.values(), "field"),
        "phenomena": _means(found.values(), "phenomenon"),
        "sets": found,
    }


def table(found: dict[str, Any]) -> str:
    """What `evaluate` found as text: accuracies in percent."""
    lines = [f"{'accuracy':>8}  {'pairs':>6}  {'ties':>5}  set"]
    lines += [f"{r['accuracy']:8.2f}  {r['pairs']:6d}  {r['ties']:5d}  {name}" for name, r in found["sets"].items()]
    for kind, title in (("phenomena", "phenomenon"), ("fields", "field")):
        if found[kind]:
            lines += ["", f"{'accuracy':>8}  {title}"]
            lines += [f"{accuracy:8.2f}  {name}" for name, accuracy in found[kind].items()]
    lines += ["", f"{found['accuracy']:8.2f}  mean of {len(found['sets'])} sets, {found['pairs']:,} pairs"]
    return "\n".join(lines) + (f" ({found['note']})" if found["note"] else "")


def _differences(predict: Likelihood, sets: Sequence[PairSet], within_word_l2r: bool) -> Iterator[float]:
    """Of each pair how much more probable the grammatical sentence is; 0 where both are the same tokens."""
    same = [_are_same(predict, one.pairs) for one in sets]
    sentences = (
        sentence
        for one, tied in zip(sets, same, strict=True)
        for pair, tie in zip(one.pairs, tied, strict=True)
        if not tie
        for sentence in pair
    )
    scores = predict.stream(sentences, on_error="return", within_word_l2r=within_word_l2r)
    for one, tied in zip(sets, same, strict=True):
        for number, tie in enumerate(tied):
            good, bad = (None, None) if tie else (next(scores), next(scores))
            for score in (good, bad):
                if isinstance(score, UserError):
                    raise UserError(f"{one.name}, pair {number + 1}: {score}")
            yield 0.0 if good is None or bad is None else good["pll"] - bad["pll"]


def _are_same(predict: Likelihood, pairs: list[tuple[str, str]]) -> list[bool]:
    ids, lengths = predict.tokenizer.encode_flat(list(chain.from_iterable(pairs)))
    rows = np.split(ids, np.cumsum(lengths)[:-1])
    return [np.array_equal(good, bad) for good, bad in zip(rows[::2], rows[1::2], strict=True)]


def _mean(rows: Iterable[dict[str, Any]]) -> float:
    return float(np.mean([row["accuracy"] for row in rows]))


def _means(rows: Iterable[dict[str, Any]], name: str) -> dict[str, float]:
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row[name] is not None:
            of[row[name]].append(row)
    return {group: _mean(of[group]) for group in sorted(of)}


def _note(sets: Sequence[PairSet]) -> str | None:
    scored, whole = (sum(counts) for counts in zip(*((len(one.pairs), one.whole) for one in sets), strict=True))
    return None if scored == whole else f"a part: the first pairs of each set, {scored:,} of {whole:,}"
