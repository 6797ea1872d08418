"""Charts as SVG, drawn for a page: colours are those of its style sheet, in light and in dark."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 440, 264
"""Of every chart, in its own units; about the pixels that it gets on a phone."""
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 12, 40
COLOURS = 8
"""Classes ``c0`` to ``c7`` of the style sheet."""


class Series(NamedTuple):
    """One line, or the bars of one colour."""

    label: str
    x: np.ndarray
    """float64 ``[N]``"""
    y: np.ndarray
    """float64 ``[N]``; NaN where there is nothing"""
    low: np.ndarray | None = None
    """float64 ``[N]`` lower edge of a band around the line"""
    high: np.ndarray | None = None
    published: bool = False
    """drawn apart: dashed, and without a colour of its own"""


class _Scale(NamedTuple):
    """Of values to positions on the page."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value):
        return self.begin + (np.asarray(value, np.float64) - self.low) / (self.high - self.low) * (
            self.end - self.begin
        )


def lines(series: Sequence[Series], across: str, up: str) -> str:
    """A chart of lines with bands; each has a finite value."""
    columns = [[one.y, one.low, one.high] for one in series]
    heights = np.concatenate([column for row in columns for column in row if column is not None])
    x, y = _scales(np.concatenate([one.x for one in series]), heights)
    parts = [_axes(x, y, across, up)]
    colours = _colours(series)
    for one, colour in zip(series, colours, strict=True):
        if one.low is not None:
            parts.append(_band(one, x, y, colour))
    for one, colour in zip(series, colours, strict=True):
        parts.append(
            f'<path class="line {colour}" d="{_path(x(one.x), y(one.y))}"><title>{escape(one.label)}</title></path>'
        )
    return _svg(parts, f"{up} over {across}") + _legend(series, colours)


def bars(series: Sequence[Series], across: str, up: str, names: Sequence[str] = ()) -> str:
    """A chart of bars beside each other at each ``x``, whole numbers; with ``names``, texts stand under 0, 1, ..."""
    places = np.concatenate([one.x for one in series])
    x, y = _scales(
        np.array([places.min() - 0.5, places.max() + 0.5]), np.concatenate([[0.0], *(one.y for one in series)])
    )
    parts = [_axes(x, y, across, up, names)]
    width = 0.8 / len(series)
    colours = _colours(series)
    for number, (one, colour) in enumerate(zip(series, colours, strict=True)):
        for place, height in zip(one.x, one.y, strict=True):
            if np.isfinite(height) and height:
                left, right = x(place - 0.4 + number * width), x(place - 0.4 + (number + 1) * width)
                upper, lower = sorted((float(y(height)), float(y(0.0))))
                title = f"{escape(one.label)}: {height:,.6g}"
                size = f'x="{left:.1f}" y="{upper:.1f}" width="{right - left:.1f}" height="{lower - upper:.1f}"'
                parts.append(f'<rect class="bar {colour}" {size}><title>{title}</title></rect>')
    return _svg(parts, f"{up} over {across}") + _legend(series, colours)


def ticks(low: float, high: float, at_most: int = 6) -> np.ndarray:
    """Round numbers from ``low`` to ``high``."""
    rough = (high - low) / at_most
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step


def _scales(xs: np.ndarray, ys: np.ndarray) -> tuple[_Scale, _Scale]:
    (left, right), (low, high) = _span(xs), _span(ys)
    room = 0.05 * (high - low)
    below = low if low == 0 else low - room
    return _Scale(left, right, LEFT, WIDTH - RIGHT), _Scale(below, high + room, HEIGHT - BOTTOM, TOP)


def _span(values: np.ndarray) -> tuple[float, float]:
    """Least and greatest of the finite values; of a single one, some room around it."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    half = (abs(low) / 2 or 0.5) if low == high else 0.0
    return low - half, high + half


def _axes(x: _Scale, y: _Scale, across: str, up: str, names: Sequence[str] = ()) -> str:
    parts = []
    for value in ticks(y.low, y.high, 5):
        at = f"{y(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{at}" dy="4" text-anchor="end">{_number(value)}</text>')
    marks = list(enumerate(names)) if names else [(value, _number(value)) for value in ticks(x.low, x.high)]
    for value, name in marks:
        at = f'x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 15}"'
        parts.append(f'<text class="tick" {at} text-anchor="middle">{escape(name)}</text>')
    centre, middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    for where, text in ((f"translate({centre} {HEIGHT - 6})", across), (f"translate(11 {middle}) rotate(-90)", up)):
        parts.append(f'<text class="axis" transform="{where}" text-anchor="middle">{escape(text)}</text>')
    return "".join(parts)


def _band(one: Series, x: _Scale, y: _Scale, colour: str) -> str:
    known = np.isfinite(one.low) & np.isfinite(one.high)
    across = x(one.x[known])
    edge = np.concatenate([np.stack([across, y(one.high[known])], 1), np.stack([across, y(one.low[known])], 1)[::-1]])
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in edge)
    return f'<polygon class="band {colour}" points="{points}"/>'


def _path(across: np.ndarray, up: np.ndarray) -> str:
    """Of lines between neighbours that are both there; a lone point is a dot."""
    parts, lifted = [], True
    for a, b in zip(across, up, strict=True):
        if not np.isfinite(b):
            lifted = True
            continue
        parts.append(f"{'M' if lifted else 'L'}{a:.1f} {b:.1f}" + ("h0" if lifted else ""))
        lifted = False
    return "".join(parts)


def _colours(series: Sequence[Series]) -> list[str]:
    own = iter(range(len(series)))
    return ["published" if one.published else f"c{next(own) % COLOURS}" for one in series]


def _legend(series: Sequence[Series], colours: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="key {colour}"></span>{escape(one.label)}</li>'
        for one, colour in zip(series, colours, strict=True)
    )
    return f'<ul class="legend">{items}</ul>'


def _svg(parts: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _number(value: float) -> str:
    """Short: ``1.5k``, ``2M``, ``0.001``."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and suffix != "k"):
            return f"{value / size:.4g}{suffix}"
    return f"{value + 0.0:.4g}"
