"""Which parts make which shard: decided by the parts' sums and the options alone."""

from collections.abc import Iterable
from dataclasses import dataclass

from bert_jax.data.pretraining.manifest import SPLITS
from bert_jax.errors import UserError
from train.preparation.jobs import Part
from train.preparation.options import PrepareOptions


@dataclass(frozen=True)
class ShardPlan:
    """shards: the parts of each shard, by split, in order; dropped: documents of a held-out split that has no shard."""

    shards: dict[str, list[list[Part]]]
    dropped: int


def plan_shards(options: PrepareOptions, parts: Iterable[Part], documents: int) -> ShardPlan:
    """Puts consecutive parts together to shards of `shard_bytes` of text or a little more.

    A shard is complete once it has so much text, and two documents with words, and two more follow: every shard has at
    least two, as next-sentence prediction needs. A held-out split that is too small for a shard is left out.

    documents: how many the text has, for the message.

    Raises UserError if the train split has no words, or only one document where two are needed.
    """
    needs = 1 + (options.objective != "none" and options.recipe != "google")
    filling = {split: _Filling(options.shard_bytes) for split in SPLITS}
    for part in parts:
        filling[part.split].add(part)
    shards: dict[str, list[list[Part]]] = {}
    dropped = 0
    for split in SPLITS:
        shards[split], last = filling[split].done, filling[split].rest()
        with_words = sum(part.with_words for part in last)
        if with_words >= needs:
            shards[split].append(last)
        elif split != "train":
            dropped = sum(part.documents for part in last)
        else:
            raise UserError(_too_little(options, documents, with_words))
    return ShardPlan(shards, dropped)


class _Filling:
    """Collects the parts of one split until they fill a shard; `done` has the shards that are complete."""

    def __init__(self, limit: int):
        self.done: list[list[Part]] = []
        self._limit = limit
        self._full: list[Part] = []
        self._next: list[Part] = []
        self._bytes = self._with_words = 0  # of the next parts

    def add(self, part: Part) -> None:
        self._next.append(part)
        self._bytes += part.bytes
        self._with_words += part.with_words
        if self._with_words < 2:
            return
        if self._full:
            self.done.append(self._full)
            self._full = []
        if self._bytes >= self._limit:
            self._full, self._next = self._next, []
            self._bytes = self._with_words = 0

    def rest(self) -> list[Part]:
        """The last shard's parts."""
        return self._full + self._next


def _too_little(options: PrepareOptions, documents: int, with_words: int) -> str:
    if not with_words:
        return f"the train split has no words ({documents} documents in all): the text is empty, or all held out"
    one = "the text is one document" if documents == 1 else "the train split is one document"
    if options.unwrap or options.documents:
        mend = "Say what a document is, as in --documents paragraphs or --documents heading:CHAPTER"
    else:
        mend = "Separate documents by blank lines"
    return (
        f"{one}: next-sentence prediction draws random sentences from a second one. {mend}, or train without it: "
        "--objective none"
    )
