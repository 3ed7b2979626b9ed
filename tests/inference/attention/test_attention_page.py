"""The page of attention weights: what it carries, that text stays text, and what a browser shows of it."""

import base64
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.inference.attention.maps import AttentionMaps
from bert_jax.inference.attention.pictures import FINE_WEIGHTS, coded, page_of
from tests.inference.attention.browser import CHROMIUM, Tab, browser

TOKENS = [
    *("[CLS]", "</script>", "<img src=http://elsewhere.test/a onerror=alert(1)>", "<!--", "[SEP]"),
    *("مرحبا", "\U0001f600", "\u202eabc", "a\nb", "&lt;", "[SEP]"),
]
SPECIAL = [0, 4, 10]
SECOND = 5  # where the second text begins


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    """Three layers of four heads, of which one is pruned."""
    length = len(TOKENS)
    weights = np.random.default_rng(0).dirichlet(np.ones(length) / 4, size=(3, 4, length)).astype(np.float32)
    has_head = np.ones((3, 4), bool)
    has_head[1, 2] = False
    weights[~has_head] = 0
    return AttentionMaps(
        tokens=TOKENS,
        attentions=weights,
        segments=(np.arange(length) >= SECOND).astype(np.int32),
        special=np.isin(np.arange(length), SPECIAL),
        has_head=has_head,
        text="</title><script src=http://elsewhere.test/b></script>",
        text_pair="\u202eتو<iframe src=http://elsewhere.test/c>",
        model="<b>model</b>",
        shown=TOKENS,
    )


class Tags(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem is not None:
            self.raw.append((self.cdata_elem, data))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def decoded(page_weights: dict) -> np.ndarray:
    """Decodes the page's data by the documentation of `Coded`."""
    raw = zlib.decompress(base64.b64decode(page_weights["data"]), -15)
    codes = np.frombuffer(raw, np.uint8).astype(np.int64)
    if page_weights["levels"] > 255:
        low, high = codes.reshape(2, -1)
        codes = low + 256 * high
    return (codes / page_weights["levels"]) ** page_weights["power"]


def data_of(page: str) -> dict:
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def softmax_rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    powers = np.exp(3 * rng.normal(size=shape))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)


def test_the_weights_of_a_page_are_off_by_no_more_than_it_says():
    rng = np.random.default_rng(1)
    fine = softmax_rows(rng, 2, 3, 40, 40)
    few = coded(fine)
    assert (few.levels, few.power) == (65535, 1)
    assert np.abs(decoded(few._asdict()) - fine.ravel()).max() <= 1 / 131070 + 1e-9
    length = int(np.sqrt(FINE_WEIGHTS)) + 1
    coarse = softmax_rows(rng, 1, 1, length, length)
    coarse[0, 0, 0] = np.eye(length)[0]  # 0 and 1 are kept as they are
    many = coded(coarse)
    assert (many.levels, many.power) == (255, 2)
    off = np.abs(decoded(many._asdict()) - coarse.ravel())
    assert (off <= np.sqrt(coarse.ravel()) / 255 + 1 / 4 / 255**2 + 1e-9).all()
    assert off[:length].max() == 0
    assert off[coarse.ravel() < 0.01].max() <= 0.0004
    assert off.max() <= 0.004


@pytest.mark.slow
@pytest.mark.parametrize("length", [74, 128])
def test_a_page_of_a_base_model_stays_small(length: int):
    weights = softmax_rows(np.random.default_rng(2), 12, 12, length, length)
    names = ["token"] * length
    ones = np.ones((12, 12), bool)
    none = np.zeros(length, np.int32)
    maps = AttentionMaps(names, weights, none, none.astype(bool), ones, "", None, "m", names)
    assert len(page_of(maps).encode()) < 2.4e6


def test_what_a_page_carries_is_what_the_maps_hold(maps: AttentionMaps):
    data = data_of(page_of(maps))
    assert data["tokens"] == TOKENS
    assert data["texts"] == [maps.text, maps.text_pair]
    assert [i for i, special in enumerate(data["special"]) if special] == SPECIAL
    assert data["segments"] == maps.segments.tolist()
    assert data["hasHead"] == maps.has_head.astype(int).tolist()
    np.testing.assert_allclose(decoded(data["weights"]).reshape(maps.attentions.shape), maps.attentions, atol=1e-5)


def test_no_text_becomes_an_element_and_only_the_pages_own_script_may_run(maps: AttentionMaps):
    page = page_of(maps)
    found = Tags(page)
    assert [tag.get("type") for tag in found.named("script")] == ["application/json", None]
    assert not found.named("img") and not found.named("iframe") and not found.named("b")
    assert [tag["href"] for tag in found.named("link")] == ["data:,"]
    assert not [tag for _, tag in found.tags if "src" in tag or any(name.startswith("on") for name in tag)]
    (policy,) = (tag["content"] for tag in found.named("meta") if "http-equiv" in tag)
    assert policy is not None and policy.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        text = [text for tag, text in found.raw if tag == kind][-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert not re.search(r"https?:|url\(|import|fetch|XMLHttp", text)


def test_in_a_notebook_each_page_is_a_frame_of_its_own(maps: AttentionMaps):
    found = Tags(maps._repr_html_())
    ((tag, attributes),) = found.tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == maps.to_html()


# What a browser makes of it

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
Open = Callable[[Path, str], Tab]


@pytest.fixture(scope="module")
def tab(tmp_path_factory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def opened(tab: Tab) -> Iterator[Open]:
    """Opens a page at a place in it; checks that it makes no request and raises no error during the test."""
    pages = set()

    def open_page(page: Path, place: str = "") -> Tab:
        pages.add(page.as_uri())
        tab.open(f"{page.as_uri()}#{place}", "document.querySelector('main')?.hidden === false")
        return tab

    tab.resize(1280, 900)
    tab.scheme("light")
    tab.away()
    tab.requests.clear()
    tab.errors.clear()
    yield open_page
    assert tab.errors == []
    assert set(tab.requests) == pages


@pytest.fixture(scope="module")
def page(maps: AttentionMaps, tmp_path_factory) -> Path:
    return maps.save_html(tmp_path_factory.mktemp("pages") / "page.html")


@pytest.fixture(scope="module")
def long_page(tmp_path_factory) -> Path:
    """100 tokens, twelve heads: in each a token looks at the one before it."""
    before = np.roll(np.eye(100, dtype=np.float32), -1, axis=1)
    weights = np.broadcast_to(before, (1, 12, 100, 100)).copy()
    tokens = [f"word{i}" for i in range(100)]
    none = np.zeros(100, np.int32)
    maps = AttentionMaps(tokens, weights, none, none.astype(bool), np.ones((1, 12), bool), "long", None, "m", tokens)
    return maps.save_html(tmp_path_factory.mktemp("pages") / "long.html")


def tokens_of(tab: Tab, side: str) -> dict[int, dict[str, Any]]:
    """Token's number -> what is shown of it: its text, its weight or None, whether it is lit up, whether kept."""
    found = tab.value(
        f"[...document.querySelectorAll('.{side} .token')].map(token => ({{number: Number(token.dataset.token),"
        "text: token.querySelector('bdi').textContent, weight: token.querySelector('.weight').textContent,"
        "lit: token.getAttribute('aria-selected') === 'true', kept: token.classList.contains('kept')}))"
    )
    return {token.pop("number"): token | {"weight": float(token["weight"] or "nan")} for token in found}


def weights_of(tab: Tab, side: str) -> list[float]:
    return [token["weight"] for token in tokens_of(tab, side).values()]


def lit(tab: Tab, side: str) -> list[int]:
    return [number for number, token in tokens_of(tab, side).items() if token["lit"]]


def token(side: str, number: int) -> str:
    return f".{side} [data-token='{number}']"


def thumb(layer: int, head: int) -> str:
    return f".grid button[title^='Layer {layer}, head {head}']"


def text(tab: Tab, selector: str) -> str:
    return tab.value(f"document.querySelector({selector!r}).textContent")


def place(tab: Tab) -> dict[str, str]:
    """The fields of the address."""
    return dict(part.split("=") for part in tab.value("location.hash.slice(1)").split("&"))


def focused(tab: Tab) -> str:
    """What has the focus: a control's name, a head's title, the side and number of a token."""
    return tab.value(
        "(element => element.name || (element.dataset.token ? "
        "`${element.parentNode.classList[1]} ${element.dataset.token}` : element.title) || element.tagName)"
        "(document.activeElement)"
    )


def says(token: int, verb: str, weights: np.ndarray) -> str:
    """The readout's text on the five largest weights."""
    largest = np.argsort(-weights, kind="stable")[:5]
    listed = ", ".join(f"{SHOWN[i]} ({i}) {weights[i]:.4f}" for i in largest)
    return f"{SHOWN[token]} ({token}) {verb} {listed}."


SHOWN = [*TOKENS[:7], "‹202E›abc", "a↵b", *TOKENS[9:]]


@in_browser
@pytest.mark.slow
def test_a_browser_shows_the_arrays_numbers_and_text_as_text(maps: AttentionMaps, page, opened: Open):
    tab = opened(page, "layer=2&head=1&token=3")
    assert text(tab, ".name") == "Layer 2, head 1"
    assert weights_of(tab, "to") == pytest.approx(maps.attentions[2, 1, 3], abs=6e-5)
    assert lit(tab, "from") == [3]
    assert [shown["text"] for shown in tokens_of(tab, "to").values()] == SHOWN
    assert tab.value("document.querySelectorAll('img, iframe').length") == 0


@in_browser
@pytest.mark.slow
def test_the_policy_refuses_a_request_and_the_browser_tells_of_those_that_are_made(page, tab: Tab, tmp_path):
    asking = tmp_path / "asking.html"
    asking.write_text("<img src=http://elsewhere.test/a>", encoding="utf-8")
    tab.open(asking.as_uri())
    assert "http://elsewhere.test/a" in tab.requests
    tab.open(page.as_uri())
    tab.errors.clear()
    asked = "fetch('http://elsewhere.test/b').then(() => 'answered', () => 'refused')"
    assert tab.value(asked) == "refused"
    assert any("Content Security Policy" in error for error in tab.errors)


@in_browser
@pytest.mark.slow
def test_filters_take_tokens_away_and_only_renormalising_changes_weights(maps: AttentionMaps, page, opened: Open):
    first = [i for i in range(SECOND) if i not in SPECIAL]
    second = [i for i in range(SECOND, len(TOKENS)) if i not in SPECIAL]
    weights = maps.attentions[0, 3, 2]
    tab = opened(page, "layer=0&head=3&token=2&pair=ab&special=hide")
    assert list(tokens_of(tab, "from")) == first
    assert list(tokens_of(tab, "to")) == second
    assert weights_of(tab, "to") == pytest.approx(weights[second], abs=6e-5)
    assert text(tab, ".readout").endswith(f"Shown tokens get {weights[second].sum():.4f} of 1.")
    tab = opened(page, "layer=0&head=3&token=2&pair=ab&special=hide&normalise=1")
    assert weights_of(tab, "to") == pytest.approx(weights[second] / weights[second].sum(), abs=1e-3)
    assert sum(weights_of(tab, "to")) == pytest.approx(1, abs=1e-3)


@in_browser
@pytest.mark.slow
def test_the_mean_leaves_out_heads_that_were_pruned_and_the_other_side_shows_who_looks(
    maps: AttentionMaps, page, opened: Open
):
    tab = opened(page, "layer=1&head=2&average=1&token=7&side=to")
    assert text(tab, ".name") == "Layer 1, mean of its heads"
    mean = maps.attentions[1, [0, 1, 3], :, 7].mean(axis=0)
    assert weights_of(tab, "from") == pytest.approx(mean, abs=6e-5)
    assert tab.value("document.querySelectorAll('.grid [aria-pressed=true]').length") == 3
    assert tab.value("document.querySelector(\".grid [title='Layer 1, head 2, pruned']\").disabled")


@in_browser
@pytest.mark.slow
def test_a_missing_position_is_no_mistake(page, opened: Open):
    tab = opened(page, "layer=9&head=x&token=-1&pair=zz&side=up")
    assert text(tab, ".name") == "Layer 0, head 0"
    assert list(tokens_of(tab, "to")) == list(range(len(TOKENS)))


# What a user does with it


@in_browser
@pytest.mark.slow
def test_a_token_pointed_at_lights_up_with_what_it_looks_at_and_who_looks_at_it(
    maps: AttentionMaps, page, opened: Open
):
    weights = maps.attentions[2, 1]
    tab = opened(page, "layer=2&head=1")
    assert np.isnan(weights_of(tab, "from") + weights_of(tab, "to")).all()
    at_rest = text(tab, ".readout")
    tab.point(token("from", 7))
    assert (lit(tab, "from"), lit(tab, "to")) == ([7], [])
    assert weights_of(tab, "to") == pytest.approx(weights[7], abs=6e-5)
    assert text(tab, ".readout") == says(7, "attends most to", weights[7])
    tab.point(token("to", 4))
    assert (lit(tab, "from"), lit(tab, "to")) == ([], [4])
    assert weights_of(tab, "from") == pytest.approx(weights[:, 4], abs=6e-5)
    assert text(tab, ".readout") == says(4, "gets most attention from", weights[:, 4])
    tab.away()
    assert np.isnan(weights_of(tab, "from") + weights_of(tab, "to")).all()
    assert text(tab, ".readout") == at_rest


@in_browser
@pytest.mark.slow
def test_a_cell_pointed_at_says_its_weight_and_is_the_darker_the_larger_that_is(
    maps: AttentionMaps, page, opened: Open
):
    weights = maps.attentions[2, 1]
    tab = opened(page, "layer=2&head=1")
    steps = np.linspace(0.01, 0.99, 40)
    places = [*((x, 0.9) for x in steps), *((0.9, y) for y in steps)]
    lights = tab.value(
        "(map => { const {width, height} = map, {data} = map.getContext('2d').getImageData(0, 0, width, height);"
        f"return {json.dumps(places)}.map(([x, y]) => {{"
        "const at = 4 * (Math.floor(y * height) * width + Math.floor(x * width));"
        "return data[at] + data[at + 1] + data[at + 2]; }); })(document.querySelector('.map'))"
    )
    cells = []
    for (x, y), light in zip(places, lights, strict=True):
        tab.point(".map", x, y)
        if not (rows := lit(tab, "from")):
            assert lit(tab, "to") == []  # a label, or the margin
            continue
        (row,), (column,) = rows, lit(tab, "to")
        weight = weights[row, column]
        assert text(tab, ".readout") == f"{SHOWN[row]} ({row}) attends to {SHOWN[column]} ({column}): {weight:.4f}"
        assert tokens_of(tab, "from")[row]["weight"] == tokens_of(tab, "to")[column]["weight"] == round(weight, 4)
        cells.append((row, column, weight, light))
    every = list(range(len(TOKENS)))
    assert sorted({row for row, *_ in cells}) == sorted({column for _, column, *_ in cells}) == every
    by_weight = sorted(cells, key=lambda cell: cell[2])
    assert all(one[3] >= two[3] for one, two in itertools.pairwise(by_weight))
    assert by_weight[0][3] > by_weight[-1][3] + 100


@in_browser
@pytest.mark.slow
def test_a_click_keeps_a_token_or_a_cell_until_it_is_let_go(maps: AttentionMaps, page, opened: Open):
    weights = maps.attentions[2, 1]
    tab = opened(page, "layer=2&head=1")
    tab.click(token("from", 7))
    tab.away()
    assert [number for number, shown in tokens_of(tab, "from").items() if shown["kept"]] == [7]
    assert weights_of(tab, "to") == pytest.approx(weights[7], abs=6e-5)
    assert place(tab) == {"layer": "2", "head": "1", "token": "7", "side": "from"}
    tab.point(token("to", 4))  # looked at while the other is kept
    assert weights_of(tab, "from") == pytest.approx(weights[:, 4], abs=6e-5)
    tab.away()
    assert (lit(tab, "from"), lit(tab, "to")) == ([7], [])
    tab.click(token("from", 7))
    tab.away()
    assert (lit(tab, "from"), place(tab)) == ([], {"layer": "2", "head": "1"})

    tab.click(".map", 0.95, 0.95)
    tab.away()
    told = text(tab, ".readout")
    (row,), (column,) = lit(tab, "from"), lit(tab, "to")
    assert told.endswith(f"({column}): {weights[row, column]:.4f}")
    again = opened(page, tab.value("location.hash.slice(1)"))
    assert text(again, ".readout") == told
    tab.press("Escape")
    assert (lit(tab, "from"), place(tab)) == ([], {"layer": "2", "head": "1"})


@in_browser
@pytest.mark.slow
def test_heads_are_chosen_in_the_overview_by_pointer_and_by_keys(maps: AttentionMaps, page, opened: Open):
    tab = opened(page, "layer=0&head=0&token=3")
    tab.click(thumb(2, 1))
    tab.away()
    assert text(tab, ".name") == "Layer 2, head 1"
    assert (tab.value("document.querySelector('[name=layer]').value"), place(tab)["head"]) == ("2", "1")
    assert weights_of(tab, "to") == pytest.approx(maps.attentions[2, 1, 3], abs=6e-5)
    tab.click(thumb(1, 2))  # pruned
    assert text(tab, ".name") == "Layer 2, head 1"
    tab.click(thumb(2, 1))
    walked = []
    for key in ["ArrowUp", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowUp"]:
        tab.press(key)
        assert focused(tab) == text(tab, ".name")
        walked.append(text(tab, ".name"))
    assert walked == [f"Layer {layer}, head {head}" for layer, head in [
        (1, 1), (1, 3), (2, 0), (2, 1), (2, 0), (1, 0), (0, 0), (2, 0),
    ]]  # fmt: skip
    assert weights_of(tab, "to") == pytest.approx(maps.attentions[2, 0, 3], abs=6e-5)


@in_browser
@pytest.mark.slow
def test_keys_walk_through_tokens_and_heads_and_let_go(maps: AttentionMaps, page, opened: Open):
    tab = opened(page, "layer=2&head=0")
    tab.click(token("from", 5))
    tab.away()
    tab.press("ArrowDown", "ArrowDown", "ArrowUp")
    assert (focused(tab), lit(tab, "from")) == ("from 6", [6])
    tab.press("ArrowRight")
    assert (focused(tab), text(tab, ".name")) == ("from 6", "Layer 2, head 1")
    assert weights_of(tab, "to") == pytest.approx(maps.attentions[2, 1, 6], abs=6e-5)
    tab.press("End", "ArrowDown")
    assert focused(tab) == f"from {len(TOKENS) - 1}"
    tab.press("Home", "ArrowUp", "Enter")
    assert (focused(tab), place(tab)["token"]) == ("from 0", "0")
    tab.press("ArrowDown", " ")
    assert place(tab)["token"] == "1"
    tab.value("document.querySelector('[name=layer]').focus()")
    assert lit(tab, "from") == [1]
    tab.press("Escape")
    assert (lit(tab, "from"), place(tab)) == ([], {"layer": "2", "head": "1"})
    tab.press("ArrowUp")
    assert text(tab, ".name") == "Layer 1, head 1"  # in a list of layers the arrows are the list's


@in_browser
@pytest.mark.slow
def test_walking_on_to_a_head_ends_the_mean(page, opened: Open):
    tab = opened(page, "layer=2&head=1&average=1")
    tab.press("ArrowRight")
    assert text(tab, ".name") == "Layer 2, head 2"
    assert not tab.value("document.querySelector('[name=average]').checked")
    tab.click("[name=average]")
    assert text(tab, ".name") == "Layer 2, mean of its heads"
    tab.click(thumb(0, 3))
    assert text(tab, ".name") == "Layer 0, head 3"


@in_browser
@pytest.mark.slow
def test_from_a_layer_whose_heads_were_all_pruned_one_comes_to_the_others(opened: Open, tmp_path):
    weights = np.full((3, 2, 4, 4), 0.25, np.float32)
    weights[1] = 0
    none = np.zeros(4, np.int32)
    names = ["a", "b", "c", "d"]
    maps = AttentionMaps(names, weights, none, none == 1, weights.max(axis=(2, 3)) > 0, "text", None, "m", names)
    tab = opened(maps.save_html(tmp_path / "page.html"), "layer=1")
    assert text(tab, ".readout") == "Every head of this layer was pruned."
    tab.value("document.querySelector('[name=special]').focus()")
    tab.press("Tab")
    assert focused(tab) == "Layer 0, head 0"
    tab.press("ArrowDown")
    assert (focused(tab), text(tab, ".name")) == ("Layer 2, head 0", "Layer 2, head 0")
    tab.press("ArrowUp", "ArrowLeft")
    assert text(tab, ".name") == "Layer 2, head 1"


@in_browser
@pytest.mark.slow
def test_layer_and_head_are_chosen_from_lists(maps: AttentionMaps, page, opened: Open):
    tab = opened(page, "layer=0&head=2&token=3")
    tab.value("document.querySelector('[name=layer]').focus()")
    tab.press("ArrowDown")
    assert text(tab, ".name") == "Layer 1, head 0"  # that of head 2 was pruned
    assert weights_of(tab, "to") == pytest.approx(maps.attentions[1, 0, 3], abs=6e-5)
    tab.press("Tab", "ArrowDown", "ArrowDown")
    assert text(tab, ".name") == "Layer 1, head 3"
    assert weights_of(tab, "to") == pytest.approx(maps.attentions[1, 3, 3], abs=6e-5)
    assert place(tab)["head"] == "3"


@in_browser
@pytest.mark.slow
def test_special_tokens_are_hidden_and_shown_and_rows_renormalised_by_clicks(maps: AttentionMaps, page, opened: Open):
    tab = opened(page, "layer=2&head=1&token=3")
    weights = maps.attentions[2, 1, 3]
    rest = [i for i in range(len(TOKENS)) if i not in SPECIAL]
    assert tab.value("document.querySelector('[name=normalise]').disabled")
    height = tab.value("document.querySelector('.links').clientHeight")
    tab.click("[name=special]")
    assert list(tokens_of(tab, "from")) == list(tokens_of(tab, "to")) == rest
    assert weights_of(tab, "to") == pytest.approx(weights[rest], abs=6e-5)
    assert text(tab, ".readout").endswith(f"Shown tokens get {weights[rest].sum():.4f} of 1.")
    shorter = tab.value("document.querySelector('.links').clientHeight")
    assert shorter / height == pytest.approx(len(rest) / len(TOKENS))
    tab.click("[name=normalise]")
    assert weights_of(tab, "to") == pytest.approx(weights[rest] / weights[rest].sum(), abs=1e-3)
    tab.click("[name=special]")
    assert list(tokens_of(tab, "to")) == list(range(len(TOKENS)))
    assert weights_of(tab, "to") == pytest.approx(weights, abs=6e-5)
    tab.value("document.querySelector('[name=pair]').focus()")
    tab.press("ArrowDown", "ArrowDown")
    assert list(tokens_of(tab, "from")) == list(range(SECOND, len(TOKENS)))
    assert list(tokens_of(tab, "to")) == list(range(SECOND))
    assert place(tab)["pair"] == "ba"


@in_browser
@pytest.mark.slow
def test_tab_comes_to_everything_once_and_goes_on_from_the_token_that_was_clicked(page, opened: Open):
    tab = opened(page, "layer=2&head=1")
    came = []
    for _ in range(9):
        tab.press("Tab")
        came.append(focused(tab))
    controls = ["layer", "head", "pair", "average", "special"]
    assert came == [*controls, "Layer 2, head 1", "from 0", "to 0", "BODY"]
    tab.click(token("from", 7))
    tab.press("Tab", shift=True)
    assert focused(tab) == "Layer 2, head 1"
    tab.press("Tab")
    assert focused(tab) == "from 7"


@in_browser
@pytest.mark.slow
def test_all_that_takes_the_focus_and_every_picture_has_a_name(page, opened: Open):
    tab = opened(page, "layer=2&head=1")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    named = {"combobox": 3, "checkbox": 3, "button": 12, "listbox": 2, "option": 2 * len(TOKENS), "image": 2}
    for role, least in named.items():
        names = [node["name"]["value"] for node in nodes if not node["ignored"] and node["role"]["value"] == role]
        assert len(names) >= least, role
        assert all(names), role


@in_browser
@pytest.mark.slow
def test_what_the_keys_come_to_is_not_hidden_under_what_stays_at_the_top(long_page: Path, opened: Open):
    tab = opened(long_page, "")
    tab.click(token("from", 80))
    shown = (
        "(element => { const {left, top, width, height} = element.getBoundingClientRect();"
        "return element.contains(document.elementFromPoint(left + width / 2, top + height / 2)); })"
        "(document.activeElement)"
    )
    for number in reversed(range(20, 80)):
        tab.press("ArrowUp")
        assert (focused(tab), tab.value(shown)) == (f"from {number}", True)


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (900, False), (390, True)])
def test_no_weight_is_lost_where_a_head_is_drawn_smaller_than_its_tokens(
    long_page: Path, opened: Open, tab: Tab, width, phone
):
    opened(long_page, "")
    tab.resize(width, 800, phone=phone)
    # A row or a column that has no pixel of its own on the screen would be left out.
    assert tab.value(
        "[...document.querySelectorAll('.grid canvas')].every(canvas =>"
        "canvas.width <= canvas.getBoundingClientRect().width * devicePixelRatio)"
    )
    dark = tab.value(
        "(canvas => { const {width, height} = canvas;"
        "const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);"
        "return [...Array(height).keys()].every(y => [...Array(width).keys()].some("
        "x => data[4 * (y * width + x)] < 60));"
        "})(document.querySelector('.grid canvas'))"
    )
    assert dark


@in_browser
@pytest.mark.slow
def test_on_a_phone_nothing_is_wider_than_the_screen_and_a_finger_does_as_well(
    maps: AttentionMaps, page, opened: Open, tab: Tab
):
    weights = maps.attentions[2, 1]
    tab.resize(390, 844, phone=True)
    opened(page, "layer=2&head=1")
    assert tab.value("document.documentElement.scrollWidth") == 390
    beyond = (
        "[...document.querySelectorAll('main *')].filter(element => {"
        "const {left, right} = element.getBoundingClientRect(); return left < 0 || right > 390; }).length"
    )
    assert tab.value(beyond) == 0
    tab.tap(token("from", 7))
    assert lit(tab, "from") == [7]
    assert weights_of(tab, "to") == pytest.approx(weights[7], abs=6e-5)
    tab.tap(".map", 0.95, 0.95)
    (row,), (column,) = lit(tab, "from"), lit(tab, "to")
    assert text(tab, ".readout").endswith(f"({column}): {weights[row, column]:.4f}")
    tab.tap(".map", 0.95, 0.95)
    assert lit(tab, "from") == lit(tab, "to") == []
    tab.tap(thumb(0, 3))
    assert text(tab, ".name") == "Layer 0, head 3"


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_moves_under_the_pointer_whatever_is_said_of_it(page, opened: Open, tab: Tab, width: int):
    tab.resize(width, 900)
    opened(page, "layer=2&head=1")
    lists = "document.querySelector('.from').getBoundingClientRect().top + scrollY"
    at_rest = tab.value(lists)
    for side in ("from", "to"):
        for number in range(len(TOKENS)):
            tab.point(token(side, number))
            assert (lit(tab, side), tab.value(lists)) == ([number], at_rest)
            assert tab.value("document.documentElement.scrollWidth") <= width


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(1, 2, 3)": https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_both_schemes(page, opened: Open, tab: Tab, scheme: str):
    opened(page, "layer=2&head=1")
    tab.scheme(scheme)
    style = "getComputedStyle(document.querySelector({!r})).{}"
    ground = luminance(tab.value(style.format("body", "backgroundColor")))
    assert (ground > 0.5) == (scheme == "light")
    for selector in ("body", ".readout", ".note", ".token.special bdi", ".texts", "footer"):
        lighter, darker = sorted([ground, luminance(tab.value(style.format(selector, "color")))], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, selector  # WCAG 2.2, 1.4.3
    weight_0 = luminance(tab.value(
        "(found => `rgb(${found[0]}, ${found[1]}, ${found[2]})`)"
        "(document.querySelector('.legend canvas').getContext('2d').getImageData(0, 0, 1, 1).data)"
    ))  # fmt: skip
    assert weight_0 == pytest.approx(ground, abs=0.01)  # the heat map was drawn again


@in_browser
@pytest.mark.slow
def test_the_texts_of_a_pair_are_named_as_the_filter_names_them(maps: AttentionMaps, page, opened: Open):
    tab = opened(page, "")
    assert tab.value("[...document.querySelectorAll('.texts b')].map(name => name.textContent)") == ["A", "B"]


@in_browser
@pytest.mark.slow
def test_in_a_notebook_the_page_does_what_it_does_elsewhere(maps: AttentionMaps, tab: Tab, tmp_path):
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{maps._repr_html_()}", encoding="utf-8")
    tab.resize(1280, 900)
    tab.errors.clear()
    tab.open(notebook.as_uri())
    with tab.inside_frame():
        tab.wait_for("document.querySelector('main')?.hidden === false")
        tab.value(f'document.querySelector("{token("from", 7)}").click()')
        assert weights_of(tab, "to") == pytest.approx(maps.attentions[0, 0, 7], abs=6e-5)
    assert tab.errors == []
