"""BLiMP: measures how often a masked model gives the grammatical sentence of a minimal pair the higher probability.

https://github.com/alexwarstadt/blimp (https://arxiv.org/abs/1912.00582): 67 sets of 1,000 pairs.
"""

import io
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.text.lines import READING_ERRORS, open_text, read_lines, what_is_text
from bert_jax.errors import UserError, in_a_line, quoted
from bert_jax.files import near_path, parse_json
from bert_jax.inference.tasks.likelihood import Likelihood
from bert_jax.inference.tasks.task_source import check_text

Lines = Iterable[tuple[int, str]]

# The paper counts the two s-selection sets as argument structure.
_PHENOMENA: dict[str | None, str] = {"s-selection": "argument_structure"}
_FIELDS: dict[str | None, str] = {"syntax/semantics": "syntax_semantics"}  # one file spells it with a slash
LARGEST_ARCHIVE = 256 << 20
"""Bytes of an archive at most, when it is unpacked; BLiMP's has 20 MB."""
MOST_MEMBERS = 10_000
"""Files, folders and headers in an archive at most."""
_BLOCK = 512
_END = bytes(2 * _BLOCK)  # how a tar archive ends
_LARGEST_RECORDS = 64 << 10  # bytes of a header that has a long name, or what else is known of a file


class PairSet(NamedTuple):
    """One paradigm.

    Attributes:
        name: its UID; without one, the name of its file.
        phenomenon, field: None if the file does not name them.
        pairs: (grammatical, ungrammatical) sentences.
        whole: the number of pairs in the file, which `limit` does not reduce.
    """

    name: str
    phenomenon: str | None
    field: str | None
    pairs: list[tuple[str, str]]
    whole: int


def read_blimp(path: Path, limit: int | None = None) -> list[PairSet]:
    """Reads BLiMP's sets, sorted by name.

    Args:
        path: a folder with one .jsonl file per set, directly in it or in its `data/`; a tar archive of such a folder,
            plain, .gz or .zst, of which the .jsonl files nearest to its root count; or a folder with one such archive
            and no .jsonl file. Hidden files do not count. Each line is a JSON object with sentence_good and
            sentence_bad; UID, linguistics_term and field are optional.
        limit: keep only so many pairs from the beginning of each set.

    Raises:
        FileNotFoundError: the path does not exist.
        UserError: there are no sets, a line is not a pair, or the archive is damaged.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit}: expected at least 1 pair of each set")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder{near_path(path)}")
    sets: dict[str, PairSet] = {}
    for name, where, lines in _in_folder(path) if path.is_dir() else _in_archive(path):
        one = _pair_set(name, where, lines, limit)
        if one.name in sets:
            raise UserError(f"{where}: a second file with the set {one.name}")
        sets[one.name] = one
    if not sets:
        raise UserError(f"{path}: has no .jsonl file; expected BLiMP's folder or an archive of it")
    return [sets[name] for name in sorted(sets)]


def evaluate(
    predict: Likelihood,
    sets: Sequence[PairSet],
    *,
    within_word_l2r: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Measures the accuracy on each set of pairs.

    A pair is right if its grammatical sentence has the higher pseudo-log-likelihood. A tie is wrong, and ties are
    counted. Two sentences with the same tokens are a tie without being scored.

    Args:
        predict: the model.
        sets: the sets to score.
        within_word_l2r: see `Likelihood`.
        progress: called with (pairs done, total pairs).

    Returns:
        accuracy: percent, the mean over the sets; phenomena, fields: name -> the mean over its sets, as in BLiMP's own
        tables; sets: name -> {accuracy, pairs, ties, phenomenon, field}; pairs, ties: the totals; model: its source;
        score: the name of the score; note: None, or a text saying that only a part of the pairs was scored.

    Raises:
        UserError: a sentence cannot be scored; the message names its set and pair number.
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
    """Formats the result of `evaluate` as a table; accuracies are in percent, names as `in_a_line` shows them."""
    lines = [f"{'accuracy':>8}  {'pairs':>6}  {'ties':>5}  set"]
    for name, one in found["sets"].items():
        lines.append(f"{one['accuracy']:8.2f}  {one['pairs']:6d}  {one['ties']:5d}  {in_a_line(name)}")
    for kind, title in (("phenomena", "phenomenon"), ("fields", "field")):
        if found[kind]:
            lines += ["", f"{'accuracy':>8}  {title}"]
            lines += [f"{accuracy:8.2f}  {in_a_line(name)}" for name, accuracy in found[kind].items()]
    lines += ["", f"{found['accuracy']:8.2f}  mean of {len(found['sets'])} sets, {found['pairs']:,} pairs"]
    return "\n".join(lines) + (f" ({found['note']})" if found["note"] else "")


def _pair_set(name: str, where: str, lines: Lines, limit: int | None) -> PairSet:
    pairs: list[tuple[str, str]] = []
    first: dict[str, Any] = {}
    whole = 0
    for number, line in lines:
        if not line.strip():
            continue
        row = _row(line, f"{where}, line {number}")
        first = first or row
        if row.get("UID", name) != first.get("UID", name):
            raise UserError(f"{where}, line {number}: found UID {row.get('UID')}; expected {first.get('UID')}")
        whole += 1
        if limit is None or whole <= limit:
            pairs.append((row["sentence_good"], row["sentence_bad"]))
    if not pairs:
        raise UserError(f"{where}: has no pairs; expected one JSON object per line")
    term, field = first.get("linguistics_term"), first.get("field")
    return PairSet(str(first.get("UID", name)), _PHENOMENA.get(term, term), _FIELDS.get(field, field), pairs, whole)


def _row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    wanted = ("sentence_good", "sentence_bad")
    if not isinstance(row, dict) or not all(name in row for name in wanted):
        raise UserError(f"{where}: expected an object with {' and '.join(wanted)}")
    for name in wanted:
        check_text(row[name], f"{where}: {name}")
    for name in ("UID", "linguistics_term", "field"):
        if not isinstance(row.get(name, ""), str):
            raise UserError(f"{where}: {quoted(name)} is {quoted(row[name])}; expected a string")
    return row


def _in_folder(path: Path) -> Iterator[tuple[str, str, Lines]]:
    """Yields (name, name for messages, lines) of each .jsonl file, or if there is none, of each file in the archive."""
    files = _visible(path, "*.jsonl") or _visible(path / "data", "*.jsonl")
    archives = _visible(path, "*.tar*")
    if not files and len(archives) > 1:
        raise UserError(f"{path}: has {len(archives)} archives; pass the path of one, such as {archives[0]}")
    yield from ((file.stem, str(file), read_lines(file)) for file in files)
    if not files and archives:
        yield from _in_archive(archives[0])


def _visible(folder: Path, pattern: str) -> list[Path]:
    return [file for file in sorted(folder.glob(pattern)) if not file.name.startswith(".")]


def _in_archive(path: Path) -> Iterator[tuple[str, str, Lines]]:
    plain = _unpacked(path)
    try:
        members = [(Path(name), begin, end) for name, begin, end in _members(plain)]
    except tarfile.TarError as error:
        raise UserError(f"{path}: neither a folder nor a complete tar archive ({error})") from None
    files = [one for one in members if one[0].suffix == ".jsonl" and one[0].name[0] != "."]
    # An archive of BLiMP's repository also has results of models, in a folder further down.
    nearest = min((len(name.parts) for name, _, _ in files), default=0)
    for name, begin, end in files:
        if len(name.parts) == nearest:
            where = f"{path}, {name}"
            yield name.stem, where, _lines(io.BytesIO(plain[begin:end]), where)
    if not plain.endswith(_END):
        raise UserError(f"{path}: the archive is truncated; download it again")


def _members(plain: bytes) -> Iterator[tuple[str, int, int]]:
    """Yields (name, where its content begins and ends) of each file in a tar archive; raises `tarfile.TarError`.

    tarfile itself reads only the headers here: it follows a size below zero back to where it was, for ever, and
    searches records of any length with a pattern that takes time with the square of it.
    """
    offset, long_name = 0, ""
    for _ in range(MOST_MEMBERS):
        header = plain[offset : offset + _BLOCK]
        if not header.strip(b"\0"):
            return
        found = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        is_file, describes_next = found.isreg(), found.type in _DESCRIBE_NEXT
        has_content = is_file or describes_next or found.type not in tarfile.SUPPORTED_TYPES
        begin = offset + _BLOCK
        end = begin + (found.size if has_content else 0)
        if not begin <= end <= len(plain):
            raise tarfile.ReadError("unexpected end of data")
        if describes_next:
            if end - begin > _LARGEST_RECORDS:
                raise tarfile.ReadError(f"a header of {end - begin:,} bytes; at most {_LARGEST_RECORDS:,} are read")
            long_name = _name_in(found.type, plain[begin:end]) or long_name
        else:
            if is_file:
                yield long_name or found.name, begin, end
            long_name = ""
        offset = end + -end % _BLOCK
    raise tarfile.ReadError(f"more than {MOST_MEMBERS:,} members, BLiMP has 67")


_DESCRIBE_NEXT = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)


def _name_in(kind: bytes, records: bytes) -> str:
    """The name that a header gives the next member; "" if it has none: it names a link, or says something else."""
    if kind == tarfile.XHDTYPE:  # each record is its length, a blank, KEY=VALUE
        found = (record.partition(b" ")[2] for record in records.split(b"\n"))
        name = next((record.removeprefix(b"path=") for record in found if record.startswith(b"path=")), b"")
    else:
        name = records.partition(b"\0")[0] if kind == tarfile.GNUTYPE_LONGNAME else b""
    return name.decode("utf-8", "surrogateescape")


def _lines(lines: Iterable[bytes], where: str) -> Lines:
    for number, line in enumerate(what_is_text(lines, where), 1):
        if isinstance(line, UserError):
            raise line
        yield number, line


def _unpacked(path: Path) -> bytes:
    try:
        with open_text(path) as file:
            plain = file.read(LARGEST_ARCHIVE + 1)
    except READING_ERRORS as error:
        raise UserError(
            f"{path}: the compressed file is damaged ({str(error) or 'it is truncated'}); download it again"
        ) from None
    if len(plain) > LARGEST_ARCHIVE:
        raise UserError(
            f"{path}: more than {LARGEST_ARCHIVE >> 20} MB unpacked, BLiMP has 20; unpack it and pass the folder"
        )
    return plain


def _differences(predict: Likelihood, sets: Sequence[PairSet], within_word_l2r: bool) -> Iterator[float]:
    """Yields each pair's difference, grammatical minus ungrammatical log-likelihood; 0 if their tokens are the same."""
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
    return None if scored == whole else f"partial: the first pairs of each set, {scored:,} of {whole:,}"
