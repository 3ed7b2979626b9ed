"""Installs bert_jax for work on it, with some of its extras: python .ci/install.py constraints/newest.txt train,gcs

pip compares sha256 sums only of a complete list of exact versions, and ours has more than any extra needs. So this
program takes from the list what the extras need, by the comments `# via` in which uv wrote who asked for a package;
`pip check` would tell what such a comment left out. PyTorch is not in the list: constraints/torch.txt says why.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
UNHASHED = "constraints/torch.txt"
# What jax[tpu] and jax[cuda12] add to jax: uv's comments name "jax" alone.
ACCELERATORS = {"libtpu": "tpu", "jax-cuda12-plugin": "cuda"}


def name_of(requirement: str) -> str:
    """The package that a requirement names, as package indexes spell it: "ml_dtypes>=0.5" names "ml-dtypes"."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def asked_by(pyproject: dict[str, Any], extras: set[str]) -> set[str]:
    """The packages that pyproject.toml itself names for these extras, and those that build it."""
    project = pyproject["project"]
    optional, own = project["optional-dependencies"], name_of(project["name"])
    if unknown := extras - set(optional):
        raise SystemExit(f"no extra is called {', '.join(sorted(unknown))}; there are {', '.join(optional)}")
    asked = {name_of(text) for text in (*project["dependencies"], *pyproject["dependency-groups"]["build"])}
    for extra in extras:
        for requirement in optional[extra]:
            if name_of(requirement) == own:
                asked |= asked_by(pyproject, set(re.findall(r"\w+", requirement[len(own) :])))
            else:
                asked.add(name_of(requirement))
    return asked


def needed(pins: str, asked: set[str], extras: set[str]) -> dict[str, list[str]]:
    """From the text of a list, what is asked for and what that asks for in turn: by package, its pins with hashes."""
    found, left = {}, re.split(r"\n(?=\w)", "\n" + pins)[1:]
    names = set(asked)
    while taken := [
        block
        for block in left
        if ACCELERATORS.get(name_of(block)) in {None, *extras}
        and {name_of(block), *map(name_of, block.partition("# via ")[2].split(","))} & names
    ]:
        left = [block for block in left if block not in taken]
        for block in taken:
            names.add(name_of(block))
            found.setdefault(name_of(block), []).append(block)
    return found


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    code = subprocess.run(command, cwd=ROOT).returncode
    if code:
        sys.exit(code)


def main(path: str, extras: set[str]) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = asked_by(pyproject, extras)
    unhashed = {name_of(line) for line in (ROOT / UNHASHED).read_text().splitlines() if re.match(r"\w", line)}
    chosen = needed((ROOT / path).read_text(), asked, extras)
    builders = {name_of(text) for text in pyproject["dependency-groups"]["build"]}
    with tempfile.TemporaryDirectory() as folder:
        # Whatever builds a package comes before it and from the list too: pip's isolated builds know no hashes.
        for names in (set(needed((ROOT / path).read_text(), builders, set())), set(chosen)):
            listed = Path(folder) / "requirements.txt"
            listed.write_text("\n".join(block for name in sorted(names) for block in chosen[name]))
            hashed = ("--require-hashes", "--no-deps", "--no-build-isolation")
            pip("install", "--quiet", *hashed, "--requirement", str(listed))
    if wanted := sorted(asked & unhashed):
        pip("install", "--quiet", "--constraint", UNHASHED, *wanted)
    pip("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")
    pip("check")


if __name__ == "__main__":
    main(sys.argv[1], set(sys.argv[2].split(",")))
