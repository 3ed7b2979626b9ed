"""One case of a fault campaign, and the table that counts them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What became of one case.

    Attributes:
        what: the row of the table that counts the case: "SIGKILL while a checkpoint is saved, pretraining".
        ended: how it ended, in the words of the table: "resumed, equal", "refused by name", "found at first use".
        held: the promise was kept.
        case: what repeats the case: its seed, the file and the change. It is printed if the promise was broken.
    """

    what: str
    ended: str
    held: bool
    case: str


def table(outcomes: Iterable[Outcome]) -> str:
    """A Markdown table: what was tried, how often, how often the promise was broken, and how the cases ended.

    Rows that begin with the same word and a colon follow one another, sorted.
    """
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.what, []).append(outcome)
    lines = ["| what was tried | cases | broken | how they ended |", "|---|---:|---:|---|"]
    groups = list(dict.fromkeys(what.split(":")[0] for what in rows))
    for what in sorted(rows, key=lambda what: (groups.index(what.split(":")[0]), what)):
        found = rows[what]
        ended = ", ".join(f"{count:,} {how}" for how, count in Counter(each.ended for each in found).most_common())
        broken = sum(not each.held for each in found)
        lines.append(f"| {what} | {len(found):,} | {broken:,} | {ended} |")
    return "\n".join(lines)
