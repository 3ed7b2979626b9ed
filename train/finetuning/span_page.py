"""A page that shows where in a text something was to be found and where it was said to be: answers, names."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

_AROUND = 300  # characters of context that are shown before the first span and after the last

_HEAD = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }}
section {{ border-top: 1px solid #ccc; padding: .6em 0 }}
h2 {{ font-size: 1em; margin: 0 }}
p {{ margin: .2em 0 }}
i {{ color: #666 }}
b {{ display: inline-block; width: 6em; font-weight: normal; color: #666 }}
mark {{ padding: 0 .15em; border-radius: .2em }}
mark small {{ font-size: .7em; margin-left: .3em; opacity: .8 }}
.label mark {{ background: #bfe3c0 }}
.prediction mark {{ background: #f6c1b8 }}
</style>
<h1>{title}</h1>
"""


class Span(NamedTuple):
    """Characters [start, end) of a text, and what they are called ("" for answers)."""

    start: int
    end: int
    name: str = ""


class SpanExample(NamedTuple):
    """A text with the spans that are right and those that were said; `title` is the question, if there is one."""

    title: str
    text: str
    label: tuple[Span, ...]
    prediction: tuple[Span, ...]


def span_page(title: str, examples: Iterable[SpanExample]) -> str:
    """One self-contained HTML page: each text with the right spans, and again with those that were said; "none" where
    there are none."""
    return _HEAD.format(title=escape(title)) + "".join(map(_section, examples)) + "</html>\n"


def _section(example: SpanExample) -> str:
    heading = f"<h2>{escape(example.title)}</h2>" if example.title else ""
    lines = "".join(
        f'<p class="{kind}"><b>{kind}</b>{_marked(example.text, spans)}</p>'
        for kind, spans in (("label", example.label), ("prediction", example.prediction))
    )
    return f"<section>{heading}{lines}</section>\n"


def _marked(text: str, spans: Sequence[Span]) -> str:
    """The text as HTML with its spans marked, cut to what lies around them."""
    if not spans:
        return "<i>none</i>"
    spans = sorted(spans)
    begin = max(0, spans[0].start - _AROUND)
    end = min(len(text), max(span.end for span in spans) + _AROUND)
    parts, at = ["… " if begin else ""], begin
    for start, stop, name in spans:
        small = f"<small>{escape(name)}</small>" if name else ""
        parts += [escape(text[at:start]), f"<mark>{escape(text[start:stop])}{small}</mark>"]
        at = stop
    return "".join([*parts, escape(text[at:end]), " …" if end < len(text) else ""])
