"""Pieces of a self-contained HTML page: it loads nothing, runs nothing, and fits a phone and the dark."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

import numpy as np


class Number(NamedTuple):
    """A number in a table, with how it is written; its ``data-value`` in the page has every digit."""

    value: float
    form: str = ",.6g"

    def __str__(self) -> str:
        return "–" if self.value != self.value else format(self.value, self.form)


def table(
    name: str, heads: Sequence[str], rows: Iterable[Sequence], marked: Mapping[tuple[int, int], str] | None = None
) -> str:
    """A table; numbers are :class:`Number`, all else is text. ``marked`` cells, (row, column), get that class."""
    rows, marked = list(rows), marked or {}
    if not rows:
        return ""
    numeric = [all(isinstance(row[i], Number) for row in rows) for i in range(len(heads))]
    kinds = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell(value, marked.get((r, c), '')) for c, value in enumerate(row))}</tr>"
        for r, row in enumerate(rows)
    )
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table id="{escape(name)}">{parts}</table></div>'


def _cell(value, mark: str) -> str:
    if isinstance(value, Number):
        classes = " ".join(filter(None, ("number", mark)))
        return f'<td class="{classes}" data-value="{value.value!r}">{value}</td>'
    kind = f' class="{mark}"' if mark else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def figure(name: str, caption: str, chart: str, numbers: str = "") -> str:
    """A chart with its caption and, folded up, its numbers; the empty text where there is no chart."""
    if not chart:
        return ""
    folded = f"<details><summary>the numbers</summary>{numbers}</details>" if numbers else ""
    return f'<figure id="{escape(name)}"><figcaption>{escape(caption)}</figcaption>{chart}{folded}</figure>'


def figures(pieces: Iterable[str]) -> str:
    """Figures side by side, as many as the window is wide for."""
    there = [piece for piece in pieces if piece]
    return f'<div class="charts">{"".join(there)}</div>' if there else ""


def section(name: str, title: str, note: str, *pieces: str) -> str:
    """A section with a heading; the empty text where none of its pieces has anything."""
    body = "".join(pieces)
    note = f"<p>{escape(note)}</p>" if note else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{note}{body}</section>' if body else ""


def page(title: str, note: str, sections: Mapping[str, str]) -> str:
    """The whole page; ``sections`` are titles to what :func:`section` made."""
    style = files("hpcrl.analysis").joinpath("data/report.css").read_text(encoding="utf-8")
    there = {name: body for name, body in sections.items() if body}
    links = "".join(f'<a href="#{_identifier(body)}">{escape(name)}</a>' for name, body in there.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(note)}</p><nav>{links}</nav>{''.join(there.values())}</body></html>\n"
    )


def _identifier(section_text: str) -> str:
    return section_text.partition('id="')[2].partition('"')[0]


def columns_of_curves(name: str, across: str, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """The numbers of a chart of lines as a table: one row for each ``x``, one column for each line."""
    places = sorted({float(x) for xs, _ in curves.values() for x in xs})
    known = {label: dict(zip(map(float, xs), map(float, ys), strict=True)) for label, (xs, ys) in curves.items()}
    rows = [[Number(x), *(Number(known[label].get(x, float("nan"))) for label in curves)] for x in places]
    return table(name, [across, *curves], rows)
