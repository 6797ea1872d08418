"""Figures of the report as files for papers and slides: PNG and SVG, drawn by matplotlib."""

import re
from collections.abc import Sequence
from pathlib import Path

from hpcrl.analysis.page import Figure
from hpcrl.errors import StorageError

SUFFIXES = (".png", ".svg")


def write_figures(figures: Sequence[Figure], directory: Path) -> list[Path]:
    """Write each figure into a directory, named after itself; files of an earlier report are replaced.

    Raises
    ------
    StorageError
        A file cannot be written.
    """
    from matplotlib.figure import Figure as Canvas

    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            canvas = Canvas(figsize=(7, 4.2), layout="constrained", dpi=150)
            _draw(canvas.add_subplot(xlabel=figure.across, ylabel=figure.up, title=figure.caption), figure)
            for suffix in SUFFIXES:
                written.append(directory / (re.sub(r"[^\w.-]", "_", figure.name) + suffix))
                canvas.savefig(written[-1])
    except OSError as error:
        raise StorageError(f"cannot write {error.filename or directory}: {error.strerror}") from error
    return written


def _draw(axes, figure: Figure) -> None:
    width = 0.8 / len(figure.series)
    for number, one in enumerate(figure.series):
        if figure.bars:
            axes.bar(one.x - 0.4 + (number + 0.5) * width, one.y, width, label=one.label)
            continue
        style = {"color": "gray", "linestyle": "--"} if one.published else {}
        (line,) = axes.plot(one.x, one.y, label=one.label, linewidth=2, marker="." if len(one.x) == 1 else "", **style)
        if one.low is not None:
            axes.fill_between(one.x, one.low, one.high, color=line.get_color(), alpha=0.2, linewidth=0)
    if figure.names:
        axes.set_xticks(range(len(figure.names)), figure.names, rotation=90 if len(figure.names) > 8 else 0)
    axes.grid(alpha=0.3)
    axes.legend()
