"""What pip installs: the library alone, typed, with its command; and the supported and tested versions."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.split()[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
# Not in the oldest set: accelerators, rivals, linters, the site, and references for which one version is known to be good.
UNTESTED = {"cuda", "tpu", "beam", "benchmarks", "parity", "lint", "docs", "dev"}


def ranges(extras: set[str]) -> dict[str, Requirement]:
    """The requirements of the library and these extras, by name."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in sorted(extras))]
    found = {canonicalize_name(r.name): r for r in (Requirement(text) for texts in lists for text in texts)}
    return {name: requirement for name, requirement in found.items() if name != PROJECT["name"]}


def pins(constraints: str, python: str) -> dict[str, Version]:
    """The versions that `constraints/NAME.txt` installs on this Python."""
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints" / f"{constraints}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        requirement = Requirement(line)
        (exact,) = requirement.specifier
        assert exact.operator == "=="
        if requirement.marker is None or Marker(str(requirement.marker)).evaluate({"python_version": python}):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} twice for Python {python}"
            found[name] = Version(exact.version)
    return found


EXTRAS = set(PROJECT["optional-dependencies"])
SETS = [("oldest", PYTHONS[0]), *(("newest", python) for python in PYTHONS)]


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_nothing_else(tmp_path: Path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        info = next(name for name in names if name.endswith("entry_points.txt"))
        assert "bert-jax = bert_jax.__main__:main" in file.read(info).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"bert_jax"}
    assert "bert_jax/py.typed" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bert_jax").rglob("*.py")}
    assert modules <= set(names)
    assert {f"bert_jax/inference/attention/page{end}" for end in (".html", ".css", ".js", "_weights.js")} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.parametrize(("constraints", "python"), SETS)
def test_what_is_pinned_lies_in_its_range(constraints: str, python: str):
    pinned = pins(constraints, python)
    asked = ranges(EXTRAS - UNTESTED if constraints == "oldest" else EXTRAS - {"cuda", "tpu", "beam", "benchmarks"})
    assert set(asked) - set(pinned) == set()
    assert [f"{asked[name]}: {pinned[name]}" for name in asked if pinned[name] not in asked[name].specifier] == []


def test_the_oldest_set_is_the_lower_ends():
    """jax>=0.10 is tested with 0.10.0, say, and not with 0.11."""
    asked, pinned = ranges(EXTRAS - UNTESTED), pins("oldest", PYTHONS[0])
    lowest = {name: [s.version for s in asked[name].specifier if s.operator in (">=", "==")] for name in asked}
    assert [name for name, versions in lowest.items() if len(versions) != 1] == []
    ends = {name: Version(version).release for name, (version,) in lowest.items()}
    assert {name: pinned[name].release[: len(end)] for name, end in ends.items()} == ends
    assert pinned["jax"] == pinned["jaxlib"]  # JAX takes a newer jaxlib too


@pytest.mark.parametrize("name", ["jax", "flax", "optax", "orbax-checkpoint"])
def test_the_newest_set_reaches_the_upper_end(name: str):
    """jax<0.13 is tested with some 0.12: no range includes a series that is not tested."""
    (below,) = (Version(s.version) for s in ranges(set())[name].specifier if s.operator == "<")
    newest = pins("newest", PYTHONS[-1])[name]
    assert (newest.major, newest.minor + 1) == (below.major, below.minor)


def test_the_supported_pythons_are_the_same_everywhere():
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    minors = [int(python.split(".")[1]) for python in PYTHONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    makefile = (ROOT / "Makefile").read_text()
    assert f"v >= (3, {minors[0]})" in makefile and f"needs Python {PYTHONS[0]} or newer" in makefile
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["ruff"]["target-version"] == f"py3{minors[0]}" and tools["pyright"]["pythonVersion"] == PYTHONS[0]
    assert f"Python {PYTHONS[0]} or newer" in (ROOT / "README.md").read_text()
