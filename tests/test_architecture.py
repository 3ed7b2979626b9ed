"""ARCHITECTURE.md's rules: who imports whom, what loads without JAX, and the public names."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax
from tests.root import ROOT

MODULES = sorted((ROOT / "bert_jax").rglob("*.py"))

# package -> the others of ours that it may import from
LEAVES = {"errors", "files", "config", "labels", "tree", "shown", "field_types"}
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "tree": set(),
    "shown": set(),
    "labels": set(),
    "config": {"errors", "files", "shown", "config_json", "presets"},
    "field_types": {"config"},
    "config_json": {"errors"},
    "presets": set(),
    "runtime": {"errors", "files", "runtime"},
    "model": LEAVES | {"model"},
    "data": LEAVES | {"data"},
    "surgery": LEAVES | {"surgery", "data.tokenizer"},
    "formats": LEAVES | {"formats", "data.tokenizer"},
    "evaluation": LEAVES | {"evaluation", "data"},
    "training": LEAVES | {"runtime", "model", "data", "training"},
    "inference": LEAVES | {"runtime", "model", "data", "formats", "training", "inference"},
    "cli": LEAVES | {"runtime", "model", "data", "formats", "training", "inference", "surgery", "evaluation", "cli"},
}
# Files that need more than their package: what turns a folder into JAX arrays, what runs a model to score it, what
# changes a folder, and a tokenizer's `from_pretrained`.
EXCEPTIONS = {
    "formats/load.py": {"model", "training"},
    "evaluation/blimp.py": {"inference", "formats"},
    "surgery/edit.py": {"formats"},
    "data/tokenizer/tokenizer.py": {"formats"},  # from_pretrained, when it is called
}
NUMPY_ONLY = (
    "data",
    "formats",
    "surgery",
    "evaluation",
    "errors",
    "files",
    "tree",
    "shown",
    "labels",
    "config",
    "field_types",
    "config_json",
    "presets",
)
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "torch", "transformers", "tensorflow"}


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Dotted names of everything that a file imports at run time, so not under TYPE_CHECKING."""
    names = set()
    skipped = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_of(module: str) -> str:
    return module.removeprefix("bert_jax.").split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_each_file_imports_only_from_the_packages_it_may(path: Path):
    inside = path.relative_to(ROOT / "bert_jax")
    package = inside.parts[0].removesuffix(".py")
    names = imports_of(path)
    assert not {n for n in names if n.split(".")[0] in ("train", "tests", "benchmarks", "configs")}
    assert not {n for n in names if n.split(".")[0] in ("torch", "transformers", "tensorflow")}
    if package in ("__init__", "__main__"):
        return
    ours = {n for n in names if n.startswith("bert_jax.")}
    exception = EXCEPTIONS.get(inside.as_posix(), set())
    allowed = MAY_IMPORT[package] | exception
    wrong = {
        n for n in ours if package_of(n) not in allowed and not any(n.startswith(f"bert_jax.{a}.") for a in allowed)
    }
    assert not wrong, f"{path.name} in {package} may not import {sorted(wrong)}"
    if package in NUMPY_ONLY and not exception:
        assert not {n for n in names if n.split(".")[0] in HEAVY}


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("orbax", "training/checkpoint/"),
        ("tokenizers", "data/tokenizer/"),
        ("huggingface_hub", "formats/hub"),
        ("onnx", "formats/onnx/"),
    ],
)
def test_a_package_is_imported_in_one_place(package: str, home: str):
    users = {
        p.relative_to(ROOT / "bert_jax").as_posix()
        for p in MODULES
        if any(n.split(".")[0] == package for n in imports_of(p))
    }
    assert users
    assert all(user.startswith(home) for user in users)


@pytest.mark.parametrize(
    "module",
    [
        *(
            pytest.param(f"bert_jax.data.pretraining.{name}", marks=pytest.mark.slow)
            for name in ("examples", "batches")
        ),
        "bert_jax.formats.read",
        "train.prepare",
        "train.doctor",
        "train.supervise",
    ],
)
def test_data_and_formats_load_without_jax(module: str):
    code = f"import sys, {module}; print(sorted({{m.split('.')[0] for m in sys.modules}} & {HEAVY!r}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_files_are_read_and_written_with_the_standard_library_alone():
    code = "import sys; import bert_jax.files; print(*{m.split('.')[0] for m in sys.modules})"
    result = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) <= {*sys.stdlib_module_names, "__main__", "bert_jax"}


def test_every_public_name_can_be_imported():
    assert set(bert_jax.__all__) == set(bert_jax._HOME)
    with pytest.raises(ImportError, match=r"bert_jax has no AutoTokenizer; here it is Tokenizer"):
        exec("from bert_jax import AutoTokenizer")
    with pytest.raises(ImportError, match=r"no AutoModelForMaskedLM; here it is load\(SOURCE\)"):
        exec("from bert_jax import AutoModelForMaskedLM")
    assert not hasattr(bert_jax, "AutoModel") and getattr(bert_jax, "Trainer", None) is None
    with pytest.raises(AttributeError, match=r"bert_jax has no Trainer; here it is python -m train\.finetune"):
        _ = bert_jax.Trainer  # type: ignore[attr-defined]
    for name in bert_jax.__all__:
        assert getattr(bert_jax, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Brt'"):
        _ = bert_jax.Brt  # type: ignore[attr-defined]


@pytest.mark.slow
def test_files_say_in_their_first_line_what_lives_there():
    silent = [
        p.relative_to(ROOT).as_posix()
        for p in [*MODULES, *sorted((ROOT / "train").rglob("*.py"))]
        if not (ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) or "").strip()
    ]
    assert silent == []


@pytest.mark.slow
def test_no_two_classes_have_one_name():
    homes: dict[str, list[str]] = {}
    for path in [*MODULES, *sorted((ROOT / "train").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
