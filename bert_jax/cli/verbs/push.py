"""The verb push: publishes a model on the hub, with a card that holds its scores."""

import argparse
import json
from typing import Any

from bert_jax.cli.arguments import Verb, add_json, add_step
from bert_jax.cli.streaming import say, write
from bert_jax.errors import in_a_line

_ABOUT = """\
Publish a model on the hub: a run, exported anew, or a folder that transformers loads. The repository is created if it
does not exist. The model card says how the model was trained, and holds its held-out scores beside their baselines.
All files go up in one commit, and are then compared with what the hub lists.

The token is that of `hf auth login`, or HF_TOKEN; it needs write access to ORG. HF_ENDPOINT names another hub.

examples:
  python -m bert_jax push runs/demo ORG/NAME --dry-run               the files and the card; nothing is sent
  python -m bert_jax push runs/demo ORG/NAME --license apache-2.0 --private
  python -m bert_jax push my-bert ORG/NAME@v2 --message "Trained on twice the text"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = "a run directory (of a fine-tuning run, its best model), or a folder that transformers loads"
    parser.add_argument("source", metavar="RUN", help=source)
    parser.add_argument("repo", metavar="ORG/NAME[@BRANCH]", help="where to; a branch that does not exist is created")
    add_step(parser)
    license = "the model's licence by the hub's name for it: apache-2.0, mit, cc-by-sa-4.0 ...; default: none stated"
    parser.add_argument("--license", metavar="NAME", help=license)
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument("--message", metavar="TEXT", help="of the commit; default: the model's kind and step")
    overwrite = "replace the model of a repository that has files; the hub keeps the earlier commits"
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    parser.add_argument("--dry-run", action="store_true", help="print the files and the card, and send nothing")
    add_json(parser, "one JSON object: repo, branch, commit, url, created, deleted, files (name -> bytes), card")


def run(arguments: argparse.Namespace) -> None:
    """`push RUN ORG/NAME`: prints the page of the published model."""
    from bert_jax.formats.hub import upload
    from bert_jax.formats.push import packed

    with packed(arguments.source, arguments.repo, step=arguments.step, license=arguments.license) as parcel:
        files = {name: path.stat().st_size for name, path in parcel.files.items()}
        told: dict[str, Any] = {"files": files, "card": parcel.card}
        if arguments.dry_run:
            table = [f"{size:>14,} bytes  {in_a_line(name)}" for name, size in files.items()]
            write(
                json.dumps(told, ensure_ascii=False, indent=1)
                if arguments.json
                else "\n".join([*table, "", parcel.card])
            )
            say(f"nothing was sent; without --dry-run these files go to {arguments.repo}")
            return
        step = "" if parcel.step is None else f", step {parcel.step:,}"
        say(f"pushing {len(files)} files, {parcel.size / 1e6:,.1f} MB (head {parcel.head}{step})")
        pushed = upload(
            parcel.files,
            arguments.repo,
            message=arguments.message or f"{parcel.head}{step}, written by bert_jax",
            private=arguments.private,
            overwrite=arguments.overwrite,
        )
    if pushed.deleted:
        say(f"deleted there, because the new model does not have them: {', '.join(pushed.deleted)}")
    if arguments.license is None and "\nlicense:" not in parcel.card:
        say("the card states no licence: without one nobody may use the model; --license NAME --overwrite adds it")
    done = "created" if pushed.created else "updated"
    say(f"{done} {pushed.repo}, branch {pushed.branch}, commit {pushed.commit[:12]}")
    write(json.dumps(pushed._asdict() | told, ensure_ascii=False, indent=1) if arguments.json else pushed.url)


VERBS = {"push": Verb(_ABOUT, add_arguments, run, runs_model=False)}
