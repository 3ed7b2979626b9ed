"""The documentation site, without building it: every page is in the navigation, every link and anchor leads somewhere."""

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import bert_jax
from docs.build_site import REFERENCE, ROOT, gather, home_of, place_of, sources

CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
_FENCED = re.compile(r"^(`{3,}).*?^\1", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(entry)]


def prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of a page by GitHub's rule: lower case, signs dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    texts = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def test_the_navigation_lists_every_page_once():
    expected = {place_of(path).as_posix() for path in sources()} | {f"reference/{name}.md" for name in REFERENCE}
    listed = pages_of(CONFIG["nav"])
    assert sorted(listed) == sorted(expected)


@pytest.mark.parametrize("document", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_anchor_exists_and_every_address_is_one(document: Path):
    wrong = []
    for link in _LINK.findall(prose(document)):
        address = urlsplit(link)
        if address.scheme:
            wrong += [] if address.scheme in ("https", "mailto") and "." in address.netloc else [link]
        elif address.fragment:
            target = document.parent / address.path if address.path else document
            wrong += [] if address.fragment in anchors(target) else [link]
    assert wrong == []


def test_the_reference_documents_every_public_name_and_what_it_names_exists():
    members = [member for _, names in REFERENCE.values() for member in names]
    assert set(bert_jax.__all__) <= set(members)
    for member in members:
        path = home_of(member)
        try:
            assert importlib.import_module(path).__doc__
        except ModuleNotFoundError:
            module, _, name = path.rpartition(".")
            assert getattr(importlib.import_module(module), name).__doc__, path


def test_every_link_leads_to_a_page_and_those_to_code_to_one_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import docs.build_site as build

    monkeypatch.setattr(build, "PAGES", tmp_path)
    gather()
    page = (tmp_path / "docs" / "pretraining.md").read_text(encoding="utf-8")
    assert "](../configs/tiny.py.md)" in page
    assert "](../benchmarks/results/wikipedia.png)" in page
    shown = (tmp_path / "configs" / "tiny.py.md").read_text(encoding="utf-8")
    assert (ROOT / "configs" / "tiny.py").read_text(encoding="utf-8") in shown
    assert (tmp_path / "benchmarks" / "results" / "wikipedia.png").is_file()
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "](docs/pretraining.md#what-a-healthy-curve-looks-like)" in index
    for path in tmp_path.rglob("*.md"):
        links = [link for link in _LINK.findall(prose(path)) if not urlsplit(link).scheme]
        assert [link for link in links if not (path.parent / (urlsplit(link).path or path.name)).is_file()] == [], path
