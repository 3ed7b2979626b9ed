"""What pip installs: the library alone, typed, with its command; the supported and tested versions, and their hashes."""

import importlib.metadata
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

from tests.ci_scripts import ci_script
from tests.root import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.split()[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
# Not in the oldest set: accelerators, NNCF, rivals, linters, the site, and references for which one version is known to be good.
UNTESTED = {"cuda", "tpu", "s3", "beam", "benchmarks", "nncf", "parity", "lint", "docs", "dev"}


def ranges(extras: set[str]) -> dict[str, Requirement]:
    """The requirements of the library and these extras, by name."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in sorted(extras))]
    found = {canonicalize_name(r.name): r for r in (Requirement(text) for texts in lists for text in texts)}
    return {name: requirement for name, requirement in found.items() if name != PROJECT["name"]}


def on(python: str) -> dict[str, str]:
    """What markers are true of: Linux with this Python."""
    return {"python_version": python, "python_full_version": f"{python}.7", "sys_platform": "linux"}


def pins(constraints: str, python: str) -> dict[str, Version]:
    """The versions that `constraints/NAME.txt` installs on this Python."""
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints" / f"{constraints}.txt").read_text().splitlines():
        if not re.match(r"\w", line):
            continue
        requirement = Requirement(line.removesuffix(" \\"))
        (exact,) = requirement.specifier
        assert exact.operator == "=="
        if requirement.marker is None or Marker(str(requirement.marker)).evaluate(on(python)):
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


def test_windows_is_refused_in_one_line():
    standard = "import importlib.metadata, runpy, shutil, sys"  # before they could look for what Windows has
    code = f"{standard}; sys.platform = 'win32'; sys.argv = ['-m']; runpy._run_module_as_main('bert_jax')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("bert_jax needs Linux or macOS; on Windows, install and run it in WSL)\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("constraints", "python"), SETS)
def test_what_is_pinned_lies_in_its_range(constraints: str, python: str):
    pinned = pins(constraints, python) | (pins("torch", python) if constraints == "newest" else {})
    asked = ranges(
        EXTRAS - UNTESTED if constraints == "oldest" else EXTRAS - {"cuda", "tpu", "s3", "beam", "benchmarks", "nncf"}
    )
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
    assert tools["ruff"]["target-version"] == f"py3{minors[0]}" and tools["pyrefly"]["python-version"] == PYTHONS[0]
    assert f"Python {PYTHONS[0]} or newer" in (ROOT / "README.md").read_text()


# --- hashes ---


@pytest.mark.parametrize("name", ["newest", "oldest"])
def test_every_pin_has_the_sum_of_each_of_its_files(name: str):
    text = (ROOT / "constraints" / f"{name}.txt").read_text()
    blocks = re.split(r"\n(?=\w)", text)[1:]
    assert len(blocks) > 100
    for block in blocks:
        first, *rest = block.rstrip().splitlines()
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; .*)? \\", first)
        hashes = [line for line in rest if not line.strip().startswith("#")]
        assert hashes and all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), first


@pytest.mark.parametrize("extras", ["train", "test,lint", "dev", "docs", "train,tpu,gcs", "train,cuda,gcs"])
@pytest.mark.parametrize("python", PYTHONS)
def test_what_an_extra_needs_is_found_in_the_list(extras: str, python: str):
    """All but PyTorch; and what JAX needs on an accelerator, gigabytes, only for who asks for that."""
    module, chosen = ci_script("install"), set(extras.split(","))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = module.asked_by(pyproject, chosen)
    found = module.needed((ROOT / "constraints" / "newest.txt").read_text(), asked, chosen)
    assert asked - {"torch"} <= set(found)
    assert asked - {"torch"} <= set(pins("newest", python))
    assert ("libtpu" in found) == ("tpu" in chosen) and ("jax-cuda12-plugin" in found) == ("cuda" in chosen)


def test_whatever_a_needed_package_needs_is_found_too():
    """The packages of this environment say the same of each other as the comments of the list."""
    module = ci_script("install")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = module.needed(
        (ROOT / "constraints" / "newest.txt").read_text(), module.asked_by(pyproject, {"train"}), {"train"}
    )
    for name in found:
        try:
            needs = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, or for builds
        needs = [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
        assert {canonicalize_name(one) for one in needs} <= set(found), name


@pytest.mark.exhaustive
def test_a_package_whose_bytes_are_others_is_not_installed(tmp_path: Path):
    module = ci_script("install")
    (block,) = module.needed((ROOT / "constraints" / "newest.txt").read_text(), {"mdurl"}, set())["mdurl"]
    changed = re.sub(r"sha256:[0-9a-f]{6}", "sha256:000000", block)
    for text, code in ((block, 0), (changed, 1)):
        (tmp_path / "one.txt").write_text(text)
        command = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-deps", "--no-cache-dir"]
        command += ["--requirement", str(tmp_path / "one.txt"), "--target", str(tmp_path / f"{code}")]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == code, ended.stderr
    assert "DO NOT MATCH THE HASHES" in ended.stderr and not (tmp_path / "1").exists()
