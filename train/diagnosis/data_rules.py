"""What may be wrong with the prepared data of a run: documents, casing, duplicates, masks."""

import dataclasses
import math
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.examples import default_dupe_factor
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.pretraining.report import sentence_hashes
from train.diagnosis.evidence import DataEvidence, Finding
from train.preparation.options import PrepareOptions

LARGEST_DOCUMENT = 0.5  # share of the tokens
UNKNOWN = 0.01  # share of the tokens
DUPLICATES = 0.2  # share of the sentences
OVERLAP = 0.1  # share of the held-out sentences that the train split has too
CAPITALS = 0.02  # share of a vocabulary's pieces of letters that have a case; an uncased one has next to none
CAPITALS_IN_TEXT = 0.002  # the same share of a text's pieces; prose has some 10 %
MASKED = 0.04  # share of a row's tokens; a phase that asks for 5 % has a little less, as nothing masks [CLS] and [SEP]
MASK_TOKENS = 0.5  # share of the masked positions that show [MASK]; 80 % is right

_SHORTEST_SENTENCE = 8  # tokens; shorter ones repeat in any text
_ROWS_READ = 256


def find_in_data(data: DataEvidence, masking: dict[str, Any] | None, phases: Sequence[Sequence]) -> list[Finding]:
    """The findings on prepared data.

    masking, phases: those of the run, as its config has them; masking None: the one that the data was prepared with.
    Data without a report, made by another program, is only checked for masks.
    """
    of_text = (_documents, _wrapped, _short_documents, _casing, _unknown_tokens, _duplicates, _overlap)
    found = [rule(data) for rule in of_text] if data.report else []
    found.append(_masks(data, masking, phases))
    return [finding for finding in found if finding]


def _documents(data: DataEvidence) -> Finding | None:
    largest = total = 0
    for shard in data.shards("train"):
        sizes = np.diff(shard.sentences[shard.documents])
        largest, total = max(largest, int(sizes.max())), total + int(sizes.sum())
    count, cut = data.train["documents"], [w for w in data.report["warnings"] if "were so long that they were cut" in w]
    share = largest / total
    large = share > LARGEST_DOCUMENT and data.manifest["objective"] != "none"
    if count > 1 and not large and not cut:
        return None
    one = "the train split is one document"
    seen = one if count == 1 else f"one of {count:,} documents has {share:.0%} of the text"
    return Finding(
        "one document",
        cut[0] if cut and not large else seen,
        "The text does not say where its documents end, so nearly all sentences seem to belong together: there is no "
        "other document to draw a random second sentence from, or to evaluate on.",
        "Put a blank line between documents, or give one file or one JSON object each; then "
        f"{_prepare(data, without=('documents',))}",
    )


def _wrapped(data: DataEvidence) -> Finding | None:
    ruined = [warning for warning in data.report["warnings"] if "every line counts as a sentence" in warning]
    if not ruined:
        return None
    return Finding(
        "wrapped lines",
        ruined[0].partition(". ")[0],
        "The lines are cut at a column, so the model sees pieces of sentences.",
        f"Join the lines of each paragraph: {_prepare(data, '--unwrap', without=('format', 'unwrap'))}",
    )


def _short_documents(data: DataEvidence) -> Finding | None:
    median = data.train["sentences_per_document_median"]
    if data.manifest["objective"] == "none" or data.train["documents"] < 2 or median >= 2:
        return None
    return Finding(
        "blank lines",
        f"half of the {data.train['documents']:,} documents have {median:.0f} sentence",
        "A blank line ends a document, so there seems to be one after every sentence. Next-sentence prediction learns "
        "nothing from documents of one sentence.",
        f"Remove the blank lines inside documents, then {_prepare(data)}",
    )


def _casing(data: DataEvidence) -> Finding | None:
    special = set(data.tokenizer.all_special_tokens)
    pieces = ["" if piece in special else piece for piece in data.tokenizer.vocabulary]
    has_capital = np.array([piece.lower() != piece for piece in pieces])
    has_letter = has_capital | np.array([piece.upper() != piece for piece in pieces])
    capitals, cased = has_capital.sum() / max(has_letter.sum(), 1), data.tokenizer.cased
    counts = data.unigram_counts
    in_text = counts[has_capital].sum() / max(counts[has_letter].sum(), 1)
    unknown, words = data.train["unk_rate"], counts[has_letter].sum()
    if not cased and capitals > CAPITALS:
        return Finding(
            "casing",
            f"the tokenizer lower-cases the text, but {has_capital.sum():,} of its {len(pieces):,} pieces have "
            "capital letters",
            "The vocabulary is a cased one. Its pieces with capitals never occur, and names fall into small pieces.",
            _prepare(data, "--cased"),
        )
    if cased and capitals <= CAPITALS and unknown > UNKNOWN:
        return Finding(
            "casing",
            f"{unknown:.1%} of the tokens are [UNK]; the tokenizer keeps capital letters, and {has_capital.sum():,} of "
            f"its {len(pieces):,} pieces have any",
            "The vocabulary is an uncased one, so every word with a capital letter is [UNK].",
            _prepare(data, "--uncased"),
        )
    if cased and capitals > CAPITALS and words >= 10_000 and in_text < CAPITALS_IN_TEXT:
        return Finding(
            "casing",
            f"{has_capital.sum():,} of the {len(pieces):,} pieces of the vocabulary have capital letters, but only "
            f"{in_text:.2%} of the text's pieces do",
            "The text was lower-cased before, and the vocabulary is a cased one: part of it is never used.",
            "Use the text as it was written, or an uncased vocabulary: "
            f"{_prepare(data, '--uncased', vocabulary='--vocab google-bert/bert-base-uncased')}",
        )
    return None


def _unknown_tokens(data: DataEvidence) -> Finding | None:
    unknown = data.train["unk_rate"]
    if unknown <= UNKNOWN or _casing(data):
        return None
    learnt = f"--vocab-size {data.tokenizer.vocab_size}" + (" --cased" if data.tokenizer.cased else "")
    return Finding(
        "unknown tokens",
        f"{unknown:.1%} of the tokens are [UNK]",
        "The vocabulary does not fit the text: another language or script.",
        f"Learn one from the text: {_prepare(data, vocabulary=learnt)}",
    )


def _duplicates(data: DataEvidence) -> Finding | None:
    share = data.train["duplicate_lines"]
    if share <= DUPLICATES:
        return None
    return Finding(
        "duplicates",
        f"{share:.0%} of the sentences repeat another one",
        "The same text comes several times, or every document has the same lines (menus, licences). The model learns "
        "these by heart, and the loss on other text stalls.",
        f"Remove what repeats: {_prepare(data, '--dedupe near,lines')}",
    )


def _overlap(data: DataEvidence) -> Finding | None:
    if "held-out" not in data.manifest["splits"] or not data.shards("held-out"):
        return None
    known, held_out = (
        np.unique(np.concatenate([sentence_hashes(s, shortest=_SHORTEST_SENTENCE) for s in data.shards(split)]))
        for split in ("train", "held-out")
    )
    if not len(held_out) or (share := float(np.isin(held_out, known).mean())) <= OVERLAP:
        return None
    return Finding(
        "held-out text is known",
        f"{share:.0%} of the held-out sentences of {_SHORTEST_SENTENCE} tokens or more are in the train split too",
        "Documents occur in several versions. The evaluation measures what the model knows by heart.",
        f"Remove what repeats: {_prepare(data, '--dedupe near,lines')}",
    )


def _masks(data: DataEvidence, masking: dict[str, Any] | None, phases: Sequence[Sequence]) -> Finding | None:
    """The finding on the first phase whose masks are wrong."""
    found = (_masks_of_phase(data, masking, *phase) for phase in phases)
    return next((finding for finding in found if finding), None)


def _masks_of_phase(
    data: DataEvidence,
    masking: dict[str, Any] | None,
    length: int,
    _batch: int,
    _steps: int,
    share_of_phase: float | None = None,
    corruption: Sequence[float] | None = None,
    *_: Any,
) -> Finding | None:
    as_prepared = MaskingConfig.as_prepared(data.manifest["settings"])
    config = None if masking is None else MaskingConfig(**masking)
    of_phase = share_of_phase is not None or corruption is not None
    if of_phase:
        config = (config or as_prepared).changed(share_of_phase, corruption)
    batches = Batches(data.path, batch_size=_ROWS_READ, max_seq_length=length, masking=config, shuffle=False)
    batch = batches.batch(0)
    chosen = batch["mlm_weights"] > 0
    share = chosen.sum() / batch["attention_mask"].sum()
    shown = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], axis=1)
    hidden = (shown == data.tokenizer.mask_token_id)[chosen].mean() if chosen.any() else 0.0
    if share >= MASKED and hidden >= MASK_TOKENS:
        return None
    seen = f"{share:.1%} of the tokens are to be predicted{of_phase * ' in a phase'} (15 % is usual)"
    if chosen.any():
        seen += f", and {hidden:.0%} of these show [MASK] (80 % is right)"
    masks = config or as_prepared
    if share < MASKED <= masks.probability and masks.whole_word:
        means = (
            "Nothing is learnt from rows without a token to predict. With whole words a row that is one word has none."
        )
        do = f"Without whole words: {_prepare(data, without=('whole_word_masking',))}"
        if masking:
            do = "In the command of a new run: masking.whole_word=false"
    elif hidden < MASK_TOKENS and chosen.any():
        means = "The model sees the tokens that it must predict: the loss falls to nothing and nothing is learnt."
        if corruption is not None:
            do = f"In the command of a new run: phases= with (0.8, 0.1, 0.1) in place of {tuple(corruption)}"
        else:
            do = f"Masks made elsewhere are wrong: {_prepare(data)}"
    else:
        means = "The model learns from few tokens of each row, and so many times more slowly."
        words = "masking.probability=0.15" if masking else "--masked-lm-prob 0.15"
        do = f"In the command of a new run: {words}" if masking else _prepare(data, words)
        if share_of_phase is not None:
            do = f"In the command of a new run: phases= with 0.15 in place of {share_of_phase:g}"
        elif masking and masking.get("max_predictions"):
            do += f" masking.max_predictions={math.ceil(0.15 * length)}"
    look = f"To look at some: python -m train.prepare --show {data.path} --limit 3"
    return Finding("masks missing", seen, means, f"{do}. {look}")


def _prepare(data: DataEvidence, words: str = "", *, vocabulary: str | None = None, without: Sequence[str] = ()) -> str:
    """The command to prepare the text again: `words`, and the options that it was given except those of `without`.

    vocabulary: words in place of those of the present one.
    """
    manifest = data.manifest
    tokenizer, settings, objective = manifest["tokenizer"], manifest["settings"], manifest["objective"]
    if vocabulary is None and tokenizer.get("learnt"):
        vocabulary = f"--vocab-size {tokenizer['vocab_size']}" + (" --cased" if tokenizer.get("cased") else "")
    elif vocabulary is None:
        vocabulary = f"--vocab {(tokenizer.get('published') or 'VOCAB').partition('@')[0]}"
    lengths = ",".join(map(str, settings.get("max_seq_lengths", settings["max_predictions"])))
    usual = {field.name: field.default for field in dataclasses.fields(PrepareOptions)}
    usual |= {"dupe_factor": default_dupe_factor(objective)}
    given = {"objective": objective} | {name: settings.get(name, usual[name]) for name in _GIVEN if name not in without}
    same = [_option(name, value) for name, value in given.items() if value != usual[name]]
    parts = ("python -m train.prepare TEXT --output DATA", vocabulary, f"--max-seq-length {lengths}", *same, words)
    return " ".join(filter(None, parts))


# Of the settings in a manifest: options that say how the text was read and cut. Later words of a command replace them.
_GIVEN = (
    *("format", "field", "unwrap", "documents", "dedupe", "sentences", "language"),
    *("rows", "twice", "masked_lm_prob", "short_seq_prob", "dupe_factor", "whole_word_masking"),
)


def _option(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {shlex.quote(str(value))}"
