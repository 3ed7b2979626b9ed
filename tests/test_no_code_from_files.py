"""No file that the program reads can run code: what could do that is not called anywhere in it."""

import ast

import pytest

from tests.root import ROOT

FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "execfile",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle.load", "cPickle.load", "dill.load", "dill.loads",
    "cloudpickle.load", "cloudpickle.loads", "joblib.load", "shelve.open", "marshal.load", "marshal.loads",
    "torch.load", "torch.jit.load", "torch.hub.load", "np.lib.format.read_array", "pandas.read_pickle",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "runpy.run_path", "runpy.run_module", "code.interact",
    "importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader", "os.system", "os.popen",
}  # fmt: skip
ALLOWED = {
    # Pipes between the program and the processes that it starts itself; nobody else writes to them.
    ("bert_jax/data/workers.py", "pickle.load"),
    # A training config is a Python program that the user names on the command line.
    ("train/run/config.py", "importlib.util.spec_from_file_location"),
}


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def forbidden_in(source: str) -> set[str]:
    """The forbidden functions that a module calls or hands on, under whatever names it imports them."""
    tree, names = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names["numpy"] = "np"
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            first, dot, rest = name_of(node).partition(".")
            name = f"{names.get(first, first)}{dot}{rest}".replace("numpy.", "np.")
            found |= {name} & FORBIDDEN
        if isinstance(node, ast.Call) and name_of(node.func).endswith("load"):
            for word in node.keywords:
                if word.arg == "allow_pickle" and not (isinstance(word.value, ast.Constant) and not word.value.value):
                    found.add("np.load(allow_pickle)")
    return found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle\npickle.load(file)", "pickle.load"),
        ("from pickle import loads as read\nread(data)", "pickle.loads"),
        ("import torch as t\nt.load(path)", "torch.load"),
        ("eval(text)", "eval"),
        ("list(map(exec, lines))", "exec"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "np.load(allow_pickle)"),
        ("import yaml\nyaml.load(text)", "yaml.load"),
    ],
)
def test_the_check_finds(source, name):
    assert forbidden_in(source) == {name}


def test_what_is_harmless_is_not_found():
    source = "import numpy as np\nimport re\nnp.load(path, allow_pickle=False)\nre.compile('a')\nself.eval(x)\nmodel.load(x)\ncompile: int = 3"
    assert forbidden_in(source) == set()


@pytest.mark.slow
def test_nothing_that_reads_a_file_can_run_code():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for folder in ("bert_jax", "train")
        for path in (ROOT / folder).rglob("*.py")
        for name in forbidden_in(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED
