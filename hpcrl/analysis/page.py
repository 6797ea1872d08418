"""Pieces of a self-contained HTML page: it loads nothing, runs nothing, and fits a phone and the dark."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

from hpcrl.analysis import charts
from hpcrl.analysis.charts import Series


class Number(NamedTuple):
    """A number in a table, with how it is written; its ``data-value`` in the page has every digit."""

    value: float
    form: str = ",.6g"

    def __str__(self) -> str:
        return "–" if self.value != self.value else format(self.value, self.form)


class Figure(NamedTuple):
    """A chart with its caption and, folded up, its numbers."""

    name: str
    """of its files, and in the page"""
    caption: str
    series: tuple[Series, ...]
    """those that have something to show; a figure without any is left out"""
    across: str
    """name and unit of what ``x`` is"""
    up: str
    bars: bool = False
    names: tuple[str, ...] = ()
    """of bars: texts that stand under 0, 1, ..."""

    def html(self) -> str:
        """The figure as a piece of the page."""
        chart = charts.bars if self.bars else charts.lines
        more = (self.names,) if self.bars else ()
        return (
            f'<figure id="{escape(self.name)}"><figcaption>{escape(self.caption)}</figcaption>'
            f"{chart(self.series, self.across, self.up, *more)}"
            f"<details><summary>the numbers</summary>{self._numbers()}</details></figure>"
        )

    def _numbers(self) -> str:
        """One row for each ``x``; one column for each line, and for the edges of its band."""
        columns: dict[str, dict[float, float]] = {}
        for one in self.series:
            parts = {one.label: one.y}
            if one.low is not None and not (one.low == one.high)[one.y == one.y].all():
                parts |= {f"{one.label}, low": one.low, f"{one.label}, high": one.high}
            columns |= {label: dict(zip(one.x.tolist(), ys.tolist(), strict=True)) for label, ys in parts.items()}
        places = sorted({x for column in columns.values() for x in column})
        nothing = float("nan")
        rows = [
            [self.names[int(x)] if self.names else Number(x), *(Number(c.get(x, nothing)) for c in columns.values())]
            for x in places
        ]
        return table(f"{self.name}-numbers", [self.across, *columns], rows)


def lines(name: str, caption: str, series: Iterable[Series], across: str, up: str) -> Figure:
    """A figure of lines with bands."""
    return Figure(name, caption, _shown(series), across, up)


def bars(name: str, caption: str, series: Iterable[Series], across: str, up: str, names: Sequence[str] = ()) -> Figure:
    """A figure of bars beside each other at each ``x``, whole numbers."""
    return Figure(name, caption, _shown(series), across, up, True, tuple(names))


def _shown(series: Iterable[Series]) -> tuple[Series, ...]:
    return tuple(one for one in series if (one.y == one.y).any())


class Section(NamedTuple):
    """A part of the page under a heading of its own; one in which there is nothing is left out."""

    name: str
    title: str
    note: str
    pieces: tuple[str | list[Figure], ...]
    """markup, or figures side by side, as many as the window is wide for"""

    def figures(self) -> list[Figure]:
        """All its figures that have something to show."""
        return [figure for piece in self.pieces if not isinstance(piece, str) for figure in piece if figure.series]

    def html(self) -> str:
        """The section as a piece of the page; the empty text where none of its pieces has anything."""
        body = "".join(piece if isinstance(piece, str) else _side_by_side(piece) for piece in self.pieces)
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f'<section id="{self.name}"><h2>{escape(self.title)}</h2>{note}{body}</section>' if body else ""


def _side_by_side(figures: list[Figure]) -> str:
    there = "".join(figure.html() for figure in figures if figure.series)
    return f'<div class="charts">{there}</div>' if there else ""


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


def folded(summary: str, body: str) -> str:
    """Something that is there to be unfolded; the empty text where there is nothing."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if body else ""


def page(title: str, note: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    style = files("hpcrl.analysis").joinpath("data/report.css").read_text(encoding="utf-8")
    there = [(section, body) for section in sections if (body := section.html())]
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section, _ in there)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(note)}</p><nav>{links}</nav>{''.join(body for _, body in there)}</body></html>\n"
    )
