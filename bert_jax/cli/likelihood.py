"""The verbs likelihood and evaluate-blimp, which share a model and its options.

How probable texts are, and whether the grammatical ones are more so.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import Verb, add_json, add_lines, add_running, add_source, running
from bert_jax.cli.streaming import answered_by, lines_of, serve, to_json, write
from bert_jax.errors import UserError

_LIKELIHOOD = """\
How probable a masked model finds each text: the pseudo-log-likelihood, which is the sum over its tokens of the natural
logarithm of their probability where they are hidden in turn, then how many tokens, and the pseudo-perplexity.

examples:
  python -m bert_jax likelihood my-bert texts.txt              one text a line, or stdin; a result a line
  python -m bert_jax likelihood my-bert texts.txt --tokens     and of each token
  python -m bert_jax likelihood my-bert --json < texts.txt     a JSON object a text: pll, tokens, pppl
"""

_BLIMP = """\
Whether a masked model finds the grammatical sentence of a minimal pair the more probable one, in percent of the pairs:
of each set of BLiMP, of each phenomenon, and the mean of all sets. Chance is 50.

examples:
  python -m bert_jax evaluate-blimp my-bert blimp/data              a folder with a .jsonl file a set
  python -m bert_jax evaluate-blimp my-bert blimp-data.tar.zst --json
  python -m bert_jax evaluate-blimp my-bert blimp/data --limit 50   the first pairs of each set: a look
"""


def _add_likelihood_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_lines(parser)
    parser.add_argument("--tokens", action="store_true", help="the log-probability of each token too")
    add_json(parser, "a JSON object a text: pll, tokens, pppl")
    _add_model_arguments(parser)


def _add_blimp_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    data = "BLiMP's folder, or a tar archive of it (.tar, .tar.gz, .tar.zst), or a folder with that"
    parser.add_argument("data", metavar="DATA", help=data)
    parser.add_argument("--limit", type=int, metavar="N", help="the first N pairs of each set only")
    add_json(parser, "one JSON object: accuracy, phenomena, fields, sets ...")
    _add_model_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    how = "hide with a token the later ones of its word (Kauf & Ivanova 2023); default: itself alone"
    parser.add_argument("--within-word", action="store_true", help=how)
    add_running(parser)


def _likelihood(arguments: argparse.Namespace) -> None:
    """`likelihood DIR [FILE]`: pseudo-log-likelihood, tokens, pseudo-perplexity and the text, a line a text."""
    texts = lines_of(arguments.file)
    from bert_jax.inference.tasks.likelihood import Likelihood

    predict = Likelihood(arguments.source, **running(arguments))
    results = answered_by(predict, texts, per_token=arguments.tokens, within_word_l2r=arguments.within_word)
    serve(results, _show, as_json=arguments.json)


def _evaluate_blimp(arguments: argparse.Namespace) -> None:
    """`evaluate-blimp DIR DATA`: a table of accuracies."""
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: expected at least 1 pair of each set")
    from bert_jax.evaluation.blimp import read_blimp

    sets = read_blimp(Path(arguments.data), arguments.limit)
    from bert_jax.evaluation.blimp import evaluate, table
    from bert_jax.inference.tasks.likelihood import Likelihood

    predict = Likelihood(arguments.source, **running(arguments))
    progress = _progress if sys.stderr.isatty() else lambda done, of: None
    found = evaluate(predict, sets, within_word_l2r=arguments.within_word, progress=progress)
    write(to_json(found) if arguments.json else table(found))


def _show(text: str, found: dict[str, Any]) -> str:
    lines = [f"{found['pll']:.4f}\t{found['tokens']}\t{found['pppl']:.4f}\t{text}"]
    lines += [f"  {row['log_probability']:.4f}\t{row['token']}" for row in found.get("per_token", ())]
    return "\n".join(lines)


def _progress(done: int, of: int) -> None:
    sys.stderr.write(f"\r{done:,} of {of:,} pairs" + ("\n" if done == of else ""))
    sys.stderr.flush()


VERBS = {
    "likelihood": Verb(_LIKELIHOOD, _add_likelihood_arguments, _likelihood),
    "evaluate-blimp": Verb(_BLIMP, _add_blimp_arguments, _evaluate_blimp),
}
