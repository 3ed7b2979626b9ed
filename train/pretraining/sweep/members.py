"""The members of a sweep, and the steps at which `halving=` compares them: what the words of its command line say."""

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bert_jax.errors import UserError
from train.pretraining.recipe import PretrainConfig

_SAME_FOR_ALL = ("data", "text", "eval_data", "eval_masking", "eval_every", "eval_batches", "text_options")
_LONGEST_NAME = 200  # file systems allow 255 bytes


@dataclass(frozen=True)
class Halving:
    """After each share of a member's steps the best 1/eta of those that began the rung go on, rounded up.

    Attributes:
        eta: at least 2.
        shares: rising, between 0 and 1; the rung is at the next evaluation.
    """

    eta: int
    shares: tuple[float, ...]

    def kept(self, members: int) -> int:
        return math.ceil(members / self.eta)


class SweepWords(NamedTuple):
    """The texts of the words sweep=, halving=, sweep_in= and merge= of a command line."""

    sweep: str
    halving: str | None = None
    sweep_in: str | None = None
    merge: str | None = None


@dataclass
class Member:
    """One run of a sweep.

    Attributes:
        fields: the swept fields -> the texts that set them.
        name: of its run directory in members/.
        losses: held-out loss at the end of each leg so far; None: it has none, or it is not finite.
        ended: "done", "stopped" (by halving), "not finite", "hopeless"; None: it goes on.
    """

    fields: dict[str, str]
    name: str
    losses: list[float | None] = field(default_factory=list)
    ended: str | None = None

    @property
    def loss(self) -> float | None:
        """Held-out loss at the end of the last leg so far."""
        return self.losses[-1] if self.losses else None


def take_sweep(argv: Sequence[str]) -> tuple[SweepWords | None, list[str]]:
    """The words of a sweep, None without `sweep=`, and the other words.

    Raises:
        UserError: halving=, sweep_in= or merge= without sweep=, or not one of their values.
    """
    found: dict[str, str] = {}
    rest = []
    for word in argv:
        key, equals, value = word.partition("=")
        if equals and key in SweepWords._fields:
            found[key] = value
        else:
            rest.append(word)
    if "halving" in found and "sweep" not in found:
        raise UserError("halving: stops the worse members of a sweep; say sweep='FIELD=VALUE,VALUE' too")
    for word, values in (("sweep_in", ("turn", "together", "auto")), ("merge", ("average",))):
        if word in found and "sweep" not in found:
            raise UserError(f"{word}: is of a sweep; say sweep='FIELD=VALUE,VALUE' too")
        if word in found and found[word] not in values:
            raise UserError(f"{word}: found {found[word]!r}; expected {' or '.join(values)}")
    return (SweepWords(**found) if "sweep" in found else None), rest


def values_of(text: str) -> dict[str, list[str]]:
    """Field -> texts of its values, of "FIELD=VALUE,VALUE;FIELD=VALUE,VALUE"; commas in brackets belong to a value.

    Raises:
        UserError: it is not of this form, names a field twice, or one that all members must share.
    """
    found: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, values = (piece.strip() for piece in part.partition("="))
        texts = _outside_brackets(values)
        if not equals or not name or not all(texts):
            raise UserError(f"sweep: found {part!r}; expected FIELD=VALUE,VALUE with ; between fields")
        if name in found:
            raise UserError(f"sweep: {name} is there twice; say {name}= once, with all its values")
        if name in ("run", "allow_change") or name.partition(".")[0] in _SAME_FOR_ALL:
            raise UserError(f"sweep: {name} must be the same for all members; give it as a word of its own")
        found[name] = texts
    if not found:
        raise UserError("sweep: is empty; expected FIELD=VALUE,VALUE, such as optimizer.learning_rate=1e-3,2e-3")
    return found


def _outside_brackets(text: str) -> list[str]:
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def members_of(values: dict[str, list[str]]) -> list[Member]:
    """The product of the values, the last field varying fastest."""
    last = [name.rpartition(".")[2] for name in values]
    short = {name: name if last.count(end) > 1 else end for name, end in zip(values, last, strict=True)}
    found = []
    for texts in itertools.product(*values.values()):
        fields = dict(zip(values, texts, strict=True))
        name = "_".join(f"{short[one]}={re.sub(r'[^A-Za-z0-9.+-]+', '-', value)}" for one, value in fields.items())
        if len(name) > _LONGEST_NAME:  # such as those of phases
            name = f"{name[:_LONGEST_NAME]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        found.append(Member(fields, name))
    return found


def halving_of(text: str | None, members: int) -> Halving | None:
    """`ETA`, which halves at shares 1/ETA, 1/ETA^2 ... until one member is left, or `ETA@SHARE,SHARE`.

    Raises:
        UserError: it is neither.
    """
    if text is None:
        return None
    wrong = UserError(
        f"halving: found {text!r}; expected a whole number of at least 2, such as 2, or 2@0.25,0.5 with rising "
        "shares of the steps"
    )
    first, at, rest = text.partition("@")
    try:
        eta, shares = int(first), tuple(float(share) for share in rest.split(",")) if at else None
    except ValueError:
        raise wrong from None
    if eta < 2 or (shares is not None and not _rise((0.0, *shares, 1.0))):
        raise wrong
    if shares is None:
        count, left = 0, members
        while left > 1:
            count, left = count + 1, math.ceil(left / eta)
        shares = tuple(eta**-power for power in range(count, 0, -1))
    return Halving(eta, shares)


def _rise(numbers: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(numbers))


def legs_of(config: PretrainConfig, halving: Halving | None) -> list[int]:
    """The steps at which a member's legs end: each rung, at an evaluation, and the last step.

    Raises:
        UserError: two of them fall on one evaluation; or `stop_after` leaves the steps open.
    """
    if halving is not None and config.stop_after is not None:
        raise UserError(
            "halving: compares the members at shares of the steps, and with stop_after= their number is open; "
            "leave one of the two out"
        )
    total, every = config.total_steps, config.eval_every
    shares = () if halving is None else halving.shares
    steps = [*(math.ceil(round(share * total / every, 9)) * every for share in shares), total]
    if not _rise(steps):
        raise UserError(
            f"halving: each rung needs an evaluation of its own, and {total:,} steps with eval_every={every} have "
            f"them at {', '.join(map(str, steps))}; lower eval_every, or give fewer shares"
        )
    return steps
