"""The page of spans marks the right slices, whatever characters the text has."""

import re
from html import unescape

from train.finetuning.report import span_page
from train.finetuning.tasks.data import Span, SpanExample


def parts(page: str, kind: str) -> tuple[str, list[str]]:
    """The text of a line and its marked slices, without their labels."""
    line = re.search(rf'<p class="{kind}"><b>{kind}</b>(.*?)</p>', page, re.DOTALL)
    assert line
    plain = re.sub(r"<small>.*?</small>", "", line[1])
    return unescape(re.sub(r"<[^>]+>", "", plain)), [unescape(m) for m in re.findall(r"<mark>(.*?)</mark>", plain)]


def test_both_lines_have_the_whole_text_and_mark_their_own_spans():
    text = "<Ada> & Bob in Zürich"
    ada, zurich = Span(1, 4, "PER"), Span(15, 21, "LOC")
    page = span_page("x < y", [SpanExample("who & where?", text, (zurich, ada), (Span(1, 11, "ORG"),))])
    assert parts(page, "label") == (text, ["Ada", "Zürich"])
    assert parts(page, "prediction") == (text, ["Ada> & Bob"])
    assert "<title>x &lt; y</title>" in page and "who &amp; where?" in page
    assert "<small>ORG</small>" in page
    assert page.count('dir="auto"') == 3  # a question or a text may be Arabic; the page is not


def test_a_long_text_is_cut_to_what_lies_around_its_spans():
    text = "a" * 1000 + "HERE" + "b" * 1000
    page = span_page("t", [SpanExample("", text, (Span(1000, 1004),), ())])
    assert parts(page, "label") == ("… " + "a" * 300 + "HERE" + "b" * 300 + " …", ["HERE"])
    assert parts(page, "prediction") == ("none", [])  # a text without marks is not repeated
    assert "src=" not in page and "href=" not in page  # the page loads nothing from elsewhere
