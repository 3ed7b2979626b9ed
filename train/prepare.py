"""Turns raw text into what pretraining reads: a vocabulary, token shards, examples, and a report on the text.

    python -m train.prepare INPUT... --output DIR (--vocab FILE|DIR|HUB_ID | --vocab-size N) [options]
    python -m train.prepare --check DIR [--json]             verify every hash, print the report
    python -m train.prepare --show DIR [--limit N] [--json]  print examples as the model sees them

If it is killed, the same command continues where it stopped. With --runner beam, Beam's own options go after "--":

    python -m train.prepare INPUT... --output DIR --vocab V --runner beam -- --direct_num_workers=4

docs/prepare.md explains the options.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import Parser, numbers
from bert_jax.cli.program import in_own_words
from bert_jax.data.pretraining.examples import OBJECTIVES, ROWS
from bert_jax.data.pretraining.manifest import MANIFEST
from bert_jax.data.text.documents import RULES
from bert_jax.data.text.sources import FORMATS
from bert_jax.errors import UserError
from bert_jax.files import expand_home, is_remote
from train.preparation.directory import check, prepare
from train.preparation.options import CHARACTER_COVERAGE, RECIPES, RUNNERS, SENTENCES, PrepareOptions, local_path
from train.preparation.show import print_report, show
from train.run.ending.stopping import EXIT_DONE, run_program

__all__ = ["PrepareOptions", "main", "prepare"]


# What printing and checking read of the command line.
_SHOWN = {"show", "json", "max_seq_length", "split", "limit"}
_CHECKED = {"check", "json"}


def _path(text: str) -> Path | str:
    return text if is_remote(text) else expand_home(text)  # as a Path the address of a bucket looks like a local one


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(prog=in_own_words("python -m train.prepare"), description=in_own_words(__doc__ or ""))
    add = p.add_argument
    add("inputs", nargs="*", metavar="INPUT", help="files, folders, globs; plain, .gz or .zst")
    add("--output", metavar="DIR", type=_path, help="the folder to write; the same command resumes it")
    add("--check", metavar="DIR", type=_path, help="verify a prepared directory and print its report")
    add("--show", metavar="DIR", type=_path, help="print examples of a prepared directory")
    add("--limit", metavar="N", type=int, help="--show: print at most N examples")
    add("--split", default="train", choices=("train", "held-out"), help="--show: the split to print (default: train)")
    add("--json", action="store_true", help="results as JSON on stdout")
    add("--format", choices=FORMATS, help="default: .jsonl, .parquet and .md by suffix, else text")
    add(
        "--field",
        metavar="NAME[,NAME]",
        default="text",
        help="the fields of a JSON object or a Parquet row with the text (default: text)",
    )
    add("--unwrap", action="store_true", help="join the lines of paragraphs that are wrapped at a column")
    add(
        "--documents",
        metavar="RULE",
        help=f"what a document of a plain file is: {RULES}\n"
        "(default: paragraphs; with --unwrap: chapters; of Markdown: files)",
    )
    add(
        "--dedupe",
        metavar="WHAT",
        help="remove documents that nearly repeat an earlier one (near), long lines that repeat\n"
        "an earlier one (lines), or both (near,lines)",
    )
    add(
        "--sentences",
        default=SENTENCES[0],
        choices=SENTENCES,
        help="plain: only those of 4 to 30 words, without digits, brackets and quotes, and with few\nnames",
    )
    add("--language", default="en", help="the language whose abbreviations do not end a sentence (default: en)")
    add("--vocab", metavar="FILE|DIR|HUB_ID", help="a vocabulary file, or the folder, run or hub id of a model")
    add("--vocab-size", metavar="N", type=int, help="learn a vocabulary of N pieces from the text")
    add(
        "--character-coverage",
        metavar="SHARE",
        type=float,
        help="the share of the text that the characters of a new vocabulary cover; words with other\n"
        f"characters become [UNK] (default: {CHARACTER_COVERAGE}; 1: every character)",
    )
    add("--cased", action="store_true", default=None, dest="cased", help="keep upper case")
    uncased = "lower-case the text (default, unless --vocab says otherwise)"
    add("--uncased", action="store_false", default=None, dest="cased", help=uncased)
    accents = "remove accents; default: if uncased, unless the text is Korean, Japanese, Indic or Thai"
    add("--strip-accents", action=argparse.BooleanOptionalAction, default=None, help=accents)
    add("--recipe", default="default", choices=RECIPES, help="google: the same data as create_pretraining_data.py")
    objective = "pairs of sentences: BERT's (nsp, default), ALBERT's (sop), or none (RoBERTa)"
    add("--objective", default="nsp", choices=OBJECTIVES, help=objective)
    add("--rows", default=ROWS[0], choices=ROWS, help="for --objective none: what fills a row (default: doc-sentences)")
    add(
        "--twice",
        metavar="SHARE",
        type=float,
        default=0.0,
        help="for --rows sentences: the share of the sentences that have a cut copy of themselves\n"
        "in their row (default: 0)",
    )
    add("--max-seq-length", metavar="L[,L]", type=numbers, default=None, help="default: 128")
    add("--max-predictions", metavar="P[,P]", type=numbers, help="default: --masked-lm-prob of L, rounded up")
    masked = "the share of the tokens to predict (default: 0.15)"
    add("--masked-lm-prob", metavar="SHARE", type=float, default=0.15, help=masked)
    short = "the share of the examples that are made shorter (default: 0.1)"
    add("--short-seq-prob", metavar="SHARE", type=float, default=0.1, help=short)
    add("--dupe-factor", metavar="N", type=int, help="passes over the text; default: 10; 1 for objective none")
    add("--whole-word-masking", action="store_true", help="mask all pieces of a word together")
    add("--held-out", metavar="SHARE", type=float, help="default: 0.005, more of a small text; 0 for recipe google")
    add("--seed", metavar="N", type=int, help="default: 0; 12345 for recipe google")
    add("--workers", metavar="N", type=int, help="processes; default: the available cores")
    add("--runner", default=RUNNERS[0], choices=RUNNERS, help="what runs the work: processes here (default), or Beam")
    add("--shard-bytes", metavar="N", type=int, default=16 << 20, help="text per shard (default: 16 MiB)")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code, raises UserError for the user's mistakes."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    words, after = parser().parse_intermixed_args(argv[:cut]), tuple(argv[cut + 1 :])
    if words.runner != "beam":
        words.inputs += after
    for name in ("output", "check", "show"):
        if (path := getattr(words, name)) is not None:
            setattr(words, name, local_path(f"--{name}", path))
    if words.show or words.check:
        if words.inputs or words.output or (words.show and words.check):
            raise UserError("--check DIR and --show DIR cannot be combined with INPUT, --output or each other")
        _refuse_others(
            words, _SHOWN if words.show else _CHECKED, f"has no effect on {'--show' if words.show else '--check'}"
        )
        if words.show:
            lengths = words.max_seq_length or (None,)
            if len(lengths) > 1:
                found = ",".join(map(str, lengths))
                raise UserError(f"--max-seq-length: found {found}; expected one length, whose examples --show prints")
            (length,) = lengths
            show(words.show, split=words.split, max_seq_length=length, limit=words.limit, as_json=words.json)
            return EXIT_DONE
        manifest = check(words.check)
        print_report(manifest, title=f"{words.check}: every file matches its hash")
        return _answer(manifest, as_json=words.json)
    if not words.inputs or words.output is None:
        raise UserError("no INPUT or no --output: say INPUT... --output DIR (or --check DIR, or --show DIR)")
    _refuse_others(words, set(vars(words)) - {"split", "limit"}, "is for --show")
    fields: dict[str, Any] = {
        name: value for name, value in vars(words).items() if name in PrepareOptions.__dataclass_fields__
    }
    if words.max_seq_length is None:
        del fields["max_seq_length"]
    fields["inputs"] = tuple(words.inputs)
    fields["beam"] = after if words.runner == "beam" else ()
    done = (words.output / MANIFEST).exists()
    manifest = prepare(PrepareOptions(**fields))
    print_report(manifest, title=f"{words.output}: {'was already prepared' if done else 'done'}")
    return _answer(manifest, as_json=words.json)


def _refuse_others(words: argparse.Namespace, read: set[str], why: str) -> None:
    """Raises UserError for an option that has a value of its own and is not `read`."""
    by_default = parser()
    for name, value in vars(words).items():
        if name not in read | {"inputs"} and value != by_default.get_default(name):
            raise UserError(f"--{name.replace('_', '-')}: {why}; leave it out")


def _answer(manifest: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(manifest["report"], ensure_ascii=False))
    return EXIT_DONE


if __name__ == "__main__":
    run_program(main)
