"""The verbs likelihood, which scores texts, and evaluate-blimp, which compares scores of grammatical and other ones."""

import argparse
import sys
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import FASTEST, Verb, add_results, add_running, add_source, add_texts, running
from bert_jax.cli.shards import add_shard, serve_shard
from bert_jax.cli.streaming import to_json, write
from bert_jax.cli.texts import texts_of
from bert_jax.errors import UserError, in_a_line

_LIKELIHOOD = """\
Score each text with a masked model. Prints the pseudo-log-likelihood (mask each token in turn; sum the natural
logarithms of the tokens' probabilities), the number of tokens and the pseudo-perplexity.

examples:
  python -m bert_jax likelihood my-bert "The cat sat." "The cat sit."
  python -m bert_jax likelihood my-bert texts.txt              one text and one result per line
  python -m bert_jax likelihood my-bert texts.txt --tokens     each token's log-probability too
  python -m bert_jax likelihood my-bert --json < texts.txt     one JSON object per text: pll, tokens, pppl
  python -m bert_jax likelihood my-bert texts.txt --output out.tsv --shard 2/4    the second quarter of the texts
"""

_BLIMP = """\
Score a masked model on BLiMP's minimal pairs. Prints the percentage of pairs whose grammatical sentence gets the higher
probability, for each set and each phenomenon, and the mean over the sets. Chance is 50.

examples:
  python -m bert_jax evaluate-blimp my-bert blimp/data              a folder with one .jsonl file per set
  python -m bert_jax evaluate-blimp my-bert blimp-data.tar.zst --json
  python -m bert_jax evaluate-blimp my-bert blimp/data --limit 50   a quick look: the first pairs of each set
"""


def _add_likelihood_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_texts(parser)
    parser.add_argument("--tokens", action="store_true", help="print each token's log-probability too")
    add_results(parser, "one JSON object per text: pll, tokens, pppl")
    add_shard(parser)
    _add_model_arguments(parser)


def _add_blimp_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    data = "BLiMP's folder, a tar archive of it (.tar, .tar.gz, .tar.zst), or a folder with that archive"
    parser.add_argument("data", metavar="DATA", help=data)
    parser.add_argument("--limit", type=int, metavar="N", help="score only the first N pairs of each set")
    add_results(parser, "one JSON object: accuracy, phenomena, fields, sets ...")
    _add_model_arguments(parser, "float32")


def _add_model_arguments(parser: argparse.ArgumentParser, dtype: str = FASTEST) -> None:
    how = "mask the later tokens of the word too (Kauf & Ivanova 2023); default: the scored token alone"
    parser.add_argument("--within-word", action="store_true", help=how)
    add_running(parser, dtype)


def _likelihood(arguments: argparse.Namespace) -> None:
    """`likelihood DIR [TEXT|FILE ...]`: prints pseudo-log-likelihood, tokens, pseudo-perplexity and text, in a line."""
    texts = texts_of(arguments.texts)
    from bert_jax.inference.tasks.likelihood import Likelihood

    predict = Likelihood(arguments.source, **running(arguments))
    options = {"per_token": arguments.tokens, "within_word_l2r": arguments.within_word}
    serve_shard(arguments, predict, texts, lambda: texts_of(arguments.texts), _show, options)


def _evaluate_blimp(arguments: argparse.Namespace) -> None:
    """`evaluate-blimp DIR DATA`: prints a table of accuracies."""
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: expected at least 1 pair of each set")
    from bert_jax.evaluation.blimp import evaluate, read_blimp, table

    sets = read_blimp(Path(arguments.data), arguments.limit)
    from bert_jax.inference.tasks.likelihood import Likelihood

    # A published score does not depend on the machine.
    arguments.dtype = arguments.dtype or "float32"
    predict = Likelihood(arguments.source, **running(arguments))
    progress = _progress if sys.stderr.isatty() else lambda done, of: None
    found = evaluate(predict, sets, within_word_l2r=arguments.within_word, progress=progress)
    write(to_json(found) if arguments.json else table(found))


def _show(text: str, found: dict[str, Any]) -> str:
    lines = [f"{found['pll']:.4f}\t{found['tokens']}\t{found['pppl']:.4f}\t{text}"]
    lines += [f"  {row['log_probability']:.4f}\t{in_a_line(row['token'])}" for row in found.get("per_token", ())]
    return "\n".join(lines)


def _progress(done: int, of: int) -> None:
    sys.stderr.write(f"\r{done:,} of {of:,} pairs" + ("\n" if done == of else ""))
    sys.stderr.flush()


VERBS = {
    "likelihood": Verb(_LIKELIHOOD, _add_likelihood_arguments, _likelihood),
    "evaluate-blimp": Verb(_BLIMP, _add_blimp_arguments, _evaluate_blimp),
}
