"""The verbs, a file for each or for two that belong together, and their table, in groups.

A file has its verbs' arguments, what they do and how they print results. It is imported when a verb is asked for.
"""

from importlib import import_module

from bert_jax.cli.arguments import Verb

GROUPS = {
    "use a model": {
        "fill-mask": "fill_mask",
        "classify": "classify",
        "tag": "tag",
        "answer": "answer",
        "choose": "choose",
        "embed": "embed",
        "similar": "embed",
        "summarise": "summarise",
        "likelihood": "likelihood",
        "next-sentence": "next_sentence",
        "attend": "attend",
        "run-compiled": "compiled",
    },
    "score a model": {
        "score": "score",
        "evaluate-blimp": "likelihood",
    },
    "look at a model, change it, write it": {
        "info": "info",
        "convert": "convert",
        "push": "push",
        "edit": "edit",
        "export-compiled": "compiled",
    },
    "in the shell": {
        "completion": "completion",
    },
}
"""Heading in the help -> verb -> its file in this folder. The training programs are in `bert_jax.cli.training`."""
ALIASES = {"export": "convert"}
FILES = {verb: file for verbs in GROUPS.values() for verb, file in verbs.items()}


def verb_of(name: str) -> Verb:
    """Imports a verb's file and returns the verb."""
    name = ALIASES.get(name, name)
    return import_module(f"bert_jax.cli.verbs.{FILES[name]}").VERBS[name]


def first_sentence(name: str) -> str:
    """A verb's line in the list of all verbs."""
    return verb_of(name).about.split(".", 1)[0].split(":", 1)[0].replace("\n", " ")
