"""The page of attention weights: what it carries, that text stays text, and what a browser shows of it."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bert_jax.inference.attention_maps import AttentionMaps
from bert_jax.inference.attention_page import FINE_WEIGHTS, coded, page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=10000"),
    *("--enable-logging=stderr", "--window-size=1200,900"),
]
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
    """By the words of `Coded`."""
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

browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A proxy's address, and what it was asked for."""
    requests: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_error(404)

        do_CONNECT = do_GET

        def log_message(self, format: str, *args: object):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


def opened(page: Path, place: str, *options: str) -> tuple[str, list[str]]:
    """The document as a browser has it after its scripts ran, and what these wrote to the console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={page.parent / 'profile'}", *options, "--dump-dom"]
    done = subprocess.run([*command, f"{page.as_uri()}#{place}"], capture_output=True, check=True, timeout=120)
    errors = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if "CONSOLE" in line]
    return done.stdout.decode("utf-8"), errors


def tokens_of(document: str, side: str) -> dict[int, tuple[str, str, str]]:
    """Token's number -> what is shown of it, its weight, whether it is selected."""
    (found,) = re.findall(rf'<div class="tokens {side}".*?>(<div class="token.*?)</div>(?=<canvas|\s*<canvas|\s*</div>)',
                          document, re.DOTALL)  # fmt: skip
    tokens = re.findall(
        r'<div class="token[^>]*data-token="(\d+)"[^>]*aria-selected="(\w+)"[^>]*>'
        r'<bdi>(.*?)</bdi><span class="weight">(.*?)</span>',
        found,
        re.DOTALL,
    )
    return {int(number): (text, weight, selected) for number, selected, text, weight in tokens}


@browser
@pytest.mark.slow
def test_a_browser_shows_the_arrays_numbers_and_asks_nobody(maps: AttentionMaps, tmp_path, asked):
    proxy, requests = asked
    page = maps.save_html(tmp_path / "page.html")
    document, errors = opened(page, "layer=2&head=1&token=3", f"--proxy-server={proxy}")
    assert errors == []
    assert [path for path in requests if "elsewhere" in path] == []
    assert "Layer 2, head 1</h2>" in document
    shown = tokens_of(document, "to")
    assert list(shown) == list(range(len(TOKENS)))
    assert [float(weight) for _, weight, _ in shown.values()] == pytest.approx(maps.attentions[2, 1, 3], abs=6e-5)
    assert [number for number, row in tokens_of(document, "from").items() if row[2] == "true"] == [3]
    texts = [text for text, _, _ in shown.values()]
    assert texts[1:4] == [
        "&lt;/script&gt;", "&lt;img src=http://elsewhere.test/a onerror=alert(1)&gt;", "&lt;!--",
    ]  # fmt: skip
    assert texts[5:10] == ["مرحبا", "\U0001f600", "‹202E›abc", "a↵b", "&amp;lt;"]
    assert "<img" not in document and "<iframe" not in document
    # The proxy does see what a page asks for.
    (tmp_path / "control.html").write_text("<img src=http://elsewhere.test/d>", encoding="utf-8")
    opened(tmp_path / "control.html", "", f"--proxy-server={proxy}")
    assert any("elsewhere.test/d" in path for path in requests)


@browser
@pytest.mark.slow
def test_filters_take_tokens_away_and_only_renormalising_changes_weights(maps: AttentionMaps, tmp_path):
    page = maps.save_html(tmp_path / "page.html")
    first = [i for i in range(SECOND) if i not in SPECIAL]
    second = [i for i in range(SECOND, len(TOKENS)) if i not in SPECIAL]
    weights = maps.attentions[0, 3, 2]
    document, _ = opened(page, "layer=0&head=3&token=2&pair=ab&special=hide")
    assert list(tokens_of(document, "from")) == first
    shown = tokens_of(document, "to")
    assert list(shown) == second
    assert [float(row[1]) for row in shown.values()] == pytest.approx(weights[second], abs=6e-5)
    assert f"On what is shown: {weights[second].sum():.4f} of 1." in document
    document, _ = opened(page, "layer=0&head=3&token=2&pair=ab&special=hide&normalise=1")
    found = [float(row[1]) for row in tokens_of(document, "to").values()]
    assert found == pytest.approx(weights[second] / weights[second].sum(), abs=1e-3)
    assert sum(found) == pytest.approx(1, abs=1e-3)


@browser
@pytest.mark.slow
def test_the_mean_leaves_out_heads_that_were_pruned_and_the_other_side_shows_who_looks(maps: AttentionMaps, tmp_path):
    page = maps.save_html(tmp_path / "page.html")
    document, errors = opened(page, "layer=1&head=2&average=1&token=7&side=to")
    assert errors == []
    assert "Layer 1, mean of its heads</h2>" in document
    mean = maps.attentions[1, [0, 1, 3], :, 7].mean(axis=0)
    shown = tokens_of(document, "from")
    assert [float(row[1]) for row in shown.values()] == pytest.approx(mean, abs=6e-5)
    assert len(re.findall('<button[^>]*aria-pressed="true"', document)) == 3
    assert "Layer 1, head 2, pruned" in document


@browser
@pytest.mark.slow
def test_a_place_that_is_not_there_is_no_mistake(maps: AttentionMaps, tmp_path):
    document, errors = opened(maps.save_html(tmp_path / "page.html"), "layer=9&head=x&token=-1&pair=zz&side=up")
    assert errors == []
    assert "Layer 0, head 0</h2>" in document
    assert list(tokens_of(document, "to")) == list(range(len(TOKENS)))
