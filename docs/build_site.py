"""`make docs`: gathers the pages of the documentation site in build/pages, and builds site/ from them with Zensical.

The pages keep their places in the repository, so that the links between them stay right. What the site cannot show as
it is becomes a page: README.md is the front page, a source file that some page links is shown with its own page, and
the public names of `bert_jax` become the reference, from their docstrings. Links to anything else end the build.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bert_jax

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
TOP = (
    "README.md",
    "README.ko.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benchmarks/RESULTS.md",
)
REFERENCE = {
    "loading": ("Loading and saving", ("load", "save_pretrained", "formats.load.Loaded", "formats.convert.convert")),
    "model": (
        "Model and heads",
        (
            "Bert",
            "BertForPreTraining",
            "BertForMaskedLM",
            "BertForNextSentencePrediction",
            "BertLMHeadModel",
            "BertForSequenceClassification",
            "BertForTokenClassification",
            "BertForQuestionAnswering",
            "BertForMultipleChoice",
            "model.encoder.BertOutput",
            "model.losses",
            "model.attention",
        ),
    ),
    "config": ("Config", ("BertConfig",)),
    "data": ("Tokenizer and data", ("Tokenizer", "Batches")),
    "training": (
        "Training",
        (
            "train_step",
            "eval_step",
            "init_state",
            "TrainState",
            "make_mesh",
            "make_optimizer",
            "training.optimizer_config.OptimizerConfig",
            "training.schedules",
        ),
    ),
    "inference": ("Inference", ("pipeline", "inference.engine.engine.Engine")),
}
"""Page -> its title, and what it documents: public names of `bert_jax`, or paths below it."""
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def sources() -> list[Path]:
    """The documents of the repository that are pages of the site."""
    folders = (ROOT / "docs", ROOT / "benchmarks" / "results")
    return [*(ROOT / name for name in TOP), *(path for folder in folders for path in sorted(folder.rglob("*.md")))]


def place_of(path: Path) -> Path:
    """The page of a document or file of the repository, below `PAGES`."""
    name = path.relative_to(ROOT)
    if name == Path("README.md"):
        return Path("index.md")
    return name if path.suffix in (".md", ".png", ".svg") else name.with_name(name.name + ".md")


def gather() -> None:
    """Writes all pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    linked: set[Path] = set()
    for source in sources():
        _write(place_of(source), _relinked(source, linked))
    for path in sorted(linked - set(sources())):
        if path.suffix in (".png", ".svg"):
            (PAGES / place_of(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, PAGES / place_of(path))
        else:
            code = _cells(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
            _write(place_of(path), f"# `{path.relative_to(ROOT)}`\n\n````python\n{code}````\n")
    for name, (title, members) in REFERENCE.items():
        _write(Path("reference") / f"{name}.md", "\n".join([f"# {title}\n", *(f"::: {home_of(m)}\n" for m in members)]))


def home_of(name: str) -> str:
    """The module path of a public name of `bert_jax`, or of a path below it."""
    return f"bert_jax.{bert_jax._HOME[name]}.{name}" if name in bert_jax._HOME else f"bert_jax.{name}"


def _relinked(source: Path, linked: set[Path]) -> str:
    """A document whose links lead to the site's pages; adds the files that they name to `linked`."""

    def relink(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return match[0]  # Zensical reports it
        if target.is_dir():
            target /= "README.md" if target == ROOT else "__init__.py"
            if not target.exists():
                return f"{match[1]}{_between(source, ROOT / 'README.md')}{match[3]}"
        linked.add(target)
        return f"{match[1]}{_between(source, target)}{match[3]}"

    return _LINK.sub(relink, source.read_text(encoding="utf-8"))


def _between(source: Path, target: Path) -> str:
    start, end = place_of(source).parent, place_of(target)
    return Path(*[".."] * len(start.parts), end).as_posix() if start.parts else end.as_posix()


def _cells(notebook: Path) -> str:
    """The code of a notebook, with its text as comments."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    parts = [
        text if cell["cell_type"] == "code" else "\n".join(f"# {line}".rstrip() for line in text.splitlines())
        for cell, text in zip(cells, texts, strict=True)
    ]
    return "\n\n".join(parts) + "\n"


def _write(place: Path, text: str) -> None:
    path = PAGES / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    gather()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "zensical.toml"]
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)
