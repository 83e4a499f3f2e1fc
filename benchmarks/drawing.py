"""
Draw charts with matplotlib, as SVG that is the same for the same results.

Text remains text and is shown in the reader's font.
"""

from __future__ import annotations

import io
import logging
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.results import factor, goal, Row

_WIDTH: Final = 5.6
"""Width in inches: narrow, so that a phone shrinks the chart least."""

_TITLE: Final = 64
"""Maximum length of a row's title in one line."""

_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
"""Ticks of logarithmic axes of ratios."""

_FONTS: Final = ["Helvetica Neue", "Arial", "DejaVu Sans", "sans-serif"]
_SETTINGS: Final[dict[Any, Any]] = {  # matplotlib declares the names as literals
    "svg.fonttype": "none",
    "svg.hashsalt": "txrdma",
    "font.family": "sans-serif",
    "font.sans-serif": _FONTS,
    "font.size": 10.5,
    "text.parse_math": False,
}

_AS_THEY_ARE: Final = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}")


@dataclass(frozen=True)
class Colours:
    ink: str
    faint: str
    tested: str
    reference: str
    missed: str


_COLOURS: Final = {
    "light": Colours("#24292f", "#8c959f", "#0b7c84", "#9aa4ae", "#b3261e"),
    "dark": Colours("#e6edf3", "#7d8590", "#4fc3cb", "#6e7781", "#ff8a80"),
}


def drawn(theme: str, draw: Callable[[Drawing], None]) -> str:
    """
    Return the SVG of a chart.

    @param draw: draws the chart.
    """
    with matplotlib.rc_context(_SETTINGS):
        drawing = Drawing(theme)
        draw(drawing)
        return drawing.svg()


class Drawing:
    """One chart in one theme, with L{_SETTINGS}."""

    def __init__(self, theme: str) -> None:
        self._colours = _COLOURS[theme]
        self._figure = Figure()
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # fonts may be missing

    def svg(self) -> str:
        """Return the contents of the file."""
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format"))
        self._figure.savefig(out, format="svg", transparent=True, metadata=nothing)
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", out.getvalue(), flags=re.DOTALL)
        return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"

    def versus(self, rows: Sequence[Row], head: str, isLogarithmic: bool) -> None:
        """Draw ratios to the compared transport, which is 1, with their targets."""
        axes = self._rows(rows, head)
        values = [value for row in rows for value in (factor(row), goal(row)) if value]
        if isLogarithmic:
            axes.set_xscale("log")
            axes.set_xlim(min([0.6, *values]) / 1.2, max([1.6, *values]) * 1.5)
            least, most = axes.get_xlim()
            axes.set_xticks([tick for tick in _TICKS if least <= tick <= most])
            axes.minorticks_off()
        else:
            axes.set_xlim(0, max([2.0, *(factor(row) or 0.0 for row in rows)]) * 1.15)
        origin = 1.0 if isLogarithmic else 0.0
        axes.axvline(1.0, color=self._colours.faint, linewidth=1)
        for number, row in enumerate(rows):
            value, wished = factor(row), goal(row)
            if value is None:
                self._title(axes, number, row)
                self._failed(axes, number, row)
                continue
            colour = self._colours.tested if value >= 1 else self._colours.reference
            axes.barh(number, value - origin, 0.36, left=origin, color=colour)
            self._value(axes, number, max(value, origin), f"{value:.3g}×")
            self._title(axes, number, row, f"{wished or 0:.3g}×")
            if wished is not None and wished <= axes.get_xlim()[1]:
                self._mark(axes, number, wished, row)
        axes.xaxis.set_major_formatter(_AS_THEY_ARE)

    def _rows(self, rows: Sequence[Row], head: str) -> Axes:
        """Create the axes of bars with titles above them, and a line of text below."""
        isLong = any(len(row["title"]) > _TITLE for row in rows)
        height = len(rows) * (0.66 if isLong else 0.5) + 0.1
        whole = height + 0.52
        self._figure.set_size_inches(_WIDTH, whole)
        axes = self._figure.add_axes((0.02, (whole - 0.02 - height) / whole, 0.96, height / whole))
        axes.set_ylim(len(rows) - 0.7, -0.8)
        axes.set_yticks([])
        for name, spine in axes.spines.items():
            spine.set_color(self._colours.faint)
            spine.set_visible(name == "bottom")
        axes.patch.set_visible(False)
        axes.tick_params(which="both", color=self._colours.faint, labelcolor=self._colours.ink, labelsize=9.5)
        axes.set_xlabel(head, color=self._colours.ink)
        return axes

    def _title(self, axes: Axes, number: int, row: Row, wished: str = "") -> None:
        """Write the title of a bar, and the target that it missed."""
        lines = textwrap.wrap(row["title"], _TITLE)
        place = axes.get_yaxis_transform()
        text = "\n".join(lines[:2]) + (" …" if len(lines) > 2 else "")
        axes.text(0, number - 0.24, text, transform=place, va="bottom", color=self._colours.ink, fontsize=9.5)
        if row["reached"] is False:
            axes.text(
                1, number - 0.24, f"missed {wished}",
                transform=place, va="bottom", ha="right", color=self._colours.missed, fontsize=9.5,
            )  # fmt: skip

    def _value(self, axes: Axes, number: int, x: float, text: str) -> None:
        ink = self._colours.ink
        axes.annotate(
            text, (x, number), (6, 0), textcoords="offset points", va="center", color=ink, fontweight="bold"
        )

    def _mark(self, axes: Axes, number: int, wished: float, row: Row) -> None:
        colour = self._colours.missed if row["reached"] is False else self._colours.ink
        axes.plot([wished] * 2, [number - 0.22, number + 0.22], color=colour, linewidth=1.8)

    def _failed(self, axes: Axes, number: int, row: Row) -> None:
        text = textwrap.shorten(f"not measured: {row['failure']}", _TITLE, placeholder=" …")
        place = axes.get_yaxis_transform()
        axes.text(0, number, text, transform=place, va="center", color=self._colours.missed)
