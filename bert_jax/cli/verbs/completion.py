"""The verb completion: prints a script with which a shell completes verbs, options, choices, files and fields."""

import argparse
import sys
from importlib import import_module

from bert_jax.cli.arguments import Parser, Verb
from bert_jax.cli.streaming import write
from bert_jax.cli.training import checkout, programs
from bert_jax.cli.verbs import ALIASES, FILES, first_sentence, verb_of
from bert_jax.errors import UserError

SHELLS = ("bash", "zsh", "fish")

_ABOUT = """\
Print a script with which a shell completes verbs, options and files. It completes the fields of a config too.

  bash   python -m bert_jax completion bash > ~/.local/share/bash-completion/completions/bert-jax
  zsh    python -m bert_jax completion zsh > ~/.zfunc/_bert-jax       if ~/.zshrc has: fpath+=~/.zfunc; compinit
  fish   python -m bert_jax completion fish > ~/.config/fish/completions/bert-jax.fish

examples:
  source <(python -m bert_jax completion bash)      for this shell only
"""

_RECIPES = {
    "pretrain": ("train.pretraining.recipe", "PretrainConfig"),
    "finetune": ("train.finetuning.recipe", "FinetuneConfig"),
}
_FOLDERS = ("DIR", "SRC", "DST", "RUN")
_FILES = ("FILE", "PATH", "INPUT", "CORPUS", "CONFIG", "GOLD", "PREDICTIONS", "DATA")


_NO_SPACE = """
# After a field and its "=" comes the value, without a space.
_bert_jax() {
  _shtab_bert_jax "$@"
  [[ "${COMPREPLY[*]}" == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o bashdefault -F _bert_jax bert-jax
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")


def run(arguments: argparse.Namespace) -> None:
    """`completion SHELL`: prints the script."""
    import shtab

    script = shtab.complete(whole_parser(), arguments.shell)
    write(script + (_NO_SPACE if arguments.shell == "bash" else ""))


def whole_parser() -> argparse.ArgumentParser:
    """One parser for all verbs, with what completes each argument."""
    parser = Parser(prog="bert-jax")
    parser.add_argument("--version", action="store_true", help="print the versions in use")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name in (*FILES, *ALIASES):
        verb_of(name).add_arguments(verbs.add_parser(name, help=first_sentence(name)))
    for name, about in programs().items():
        _add_program(verbs, name, about)
    for one in verbs.choices.values():
        for action in one._actions:
            _complete(action)
    return parser


def _complete(action: argparse.Action) -> None:
    """Files or folders complete an argument whose name in the help says that it is one."""
    import shtab

    names = str(action.metavar).replace("[,L]", "").split("|")
    if action.choices is None and not hasattr(action, "complete"):
        if any(name in _FILES for name in names):
            action.complete = shtab.FILE  # pyrefly: ignore[missing-attribute]
        elif any(name in _FOLDERS for name in names):
            action.complete = shtab.DIRECTORY  # pyrefly: ignore[missing-attribute]


def _add_program(verbs: "argparse._SubParsersAction[Parser]", name: str, about: str) -> None:
    """Adds a program of `train/`: with its own parser, or a config and the fields of the config."""
    place = checkout()
    if place is not None and str(place) not in sys.path:
        sys.path.insert(0, str(place))
    if name == "prepare" and place is not None:
        own = import_module("train.prepare").parser()
        verbs.add_parser(name, help=about, parents=[own], add_help=False)
        return
    parser = verbs.add_parser(name, help=about)
    if name not in _RECIPES:
        parser.add_argument("runs", metavar="RUN", nargs="*")
        return
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("fields", metavar="FIELD=VALUE", nargs="*", choices=_fields(name) if place else None)
    for option in ("--dry-run", "--json", "--fields"):
        parser.add_argument(option, action="store_true")


def _fields(name: str) -> list[str]:
    """ "optimizer.learning_rate=", ... of the config of a program."""
    module, kind = _RECIPES[name]
    try:
        config = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise UserError(f"training needs the package {error.name}: pip install -e '.[train]'") from None
    rows = import_module("train.run.fields").fields_of(config())
    return ["run=", *(f"{row.path}=" for row in rows)]


VERBS = {"completion": Verb(_ABOUT, add_arguments, run, runs_model=False)}
