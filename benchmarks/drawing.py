"""
Draw charts with matplotlib, as SVG that is the same for the same results.

Text remains text and is shown in the reader's font.
"""

from __future__ import annotations

import io
import logging
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from benchmarks.results import factor, goal, Row, shortly

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
    """Colours of a theme."""

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

    # The charts

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

    def amounts(self, rows: Sequence[Row], unit: str) -> None:
        """Draw values that are compared with nothing, with their targets."""
        axes = self._rows(rows, unit)
        reaches = [row["reaches"].get("leastValue") or row["reaches"].get("mostValue") for row in rows]
        most = 1.2 * max(chain(*(row["tested"] for row in rows), filter(None, reaches)))
        axes.set_xlim(0, most)
        for number, (row, wished) in enumerate(zip(rows, reaches, strict=True)):
            self._title(axes, number, row, shortly(wished or 0))
            if row["failure"] or not row["tested"]:
                self._failed(axes, number, row)
                continue
            axes.barh(number, median(row["tested"]), 0.36, color=self._colours.tested)
            self._spread(axes, number, row["tested"])
            self._value(axes, number, max(row["tested"]), shortly(median(row["tested"])))
            if wished:
                self._mark(axes, number, wished, row)
        ticks = MaxNLocator(5).tick_values(0, most)
        # whole bars only, so that no value is cut
        axes.set_xticks([tick for tick in ticks if tick <= 0.94 * most])
        axes.xaxis.set_major_formatter(_AS_THEY_ARE)

    def bars(self, panels: Mapping[str, Mapping[str, Sequence[float]]], tested: str) -> None:
        """Draw one panel above the other, each with the same few bars; C{tested} has its own colour."""
        heights = [len(bars) * 0.27 + 0.25 for bars in panels.values()]
        for axes, (head, bars) in zip(self._panels(heights, left=0.36), panels.items(), strict=True):
            for number, (name, values) in enumerate(bars.items()):
                colour = self._colours.tested if name == tested else self._colours.reference
                axes.barh(number, median(values), 0.62, color=colour)
                self._spread(axes, number, values)
                self._value(axes, number, max(values), shortly(median(values)))
            axes.set_xlim(0, max(max(values) for values in bars.values()) * 1.2)
            axes.set_yticks(range(len(bars)), list(bars), color=self._colours.ink)
            axes.tick_params(left=False)
            self._frame(axes, "", ["left"])
            axes.set_ylim(len(bars) - 0.4, -0.6)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            self._head(axes, head, -0.55)

    def bySize(self, pairs: Sequence[Mapping[str, Any]]) -> None:
        """Draw lines over message sizes, for each pair of devices and each transfer."""
        colours = (self._colours.tested, self._colours.missed, self._colours.ink)
        panels = self._panels([2.1, 2.1], left=0.13)
        heads = {"bandwidth": (1e-6, "MB/s"), "latency": (1e6, "round trip, us")}
        for axes, (kind, (unit, head)) in zip(panels, heads.items(), strict=True):
            for pair, colour in zip(pairs, colours, strict=False):
                for transfer, style in (("send", "-"), ("write", "--")):
                    points = {
                        size: median(found[0] for found in rounds) * unit
                        for test, what, size, rounds in pair["values"]
                        if (test, what) == (transfer, kind)
                    }
                    label = f"{pair['name']}, {transfer}"
                    axes.plot(
                        *zip(*sorted(points.items()), strict=True) if points else ((), ()),
                        style, color=colour, label=label, marker="o", markersize=3.5, linewidth=1.6,
                    )  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _bytes(size)))
            self._plain(axes)
            self._frame(axes, "", [])
            axes.set_title(
                f"{head}, by bytes of a message", loc="left", fontsize=10.5, color=self._colours.ink
            )
            if kind == "bandwidth":
                axes.legend(frameon=False, labelcolor=self._colours.ink, fontsize=9)

    def structures(self, times: Mapping[str, Mapping[str, float]]) -> None:
        """Draw a dot for each structure."""
        (axes,) = self._panels([2.8], left=0.13)
        fields = [each["fields"] for each in times.values()]
        for what, colour in (("decode", self._colours.tested), ("encode", self._colours.missed)):
            found = [each[what] for each in times.values()]
            axes.scatter(fields, found, s=13, color=colour, label=what, alpha=0.75, linewidths=0)
        axes.set_yscale("log")
        self._plain(axes)
        self._frame(axes, "fields of a structure", [])
        self._head(axes, "microseconds")
        axes.legend(frameon=False, labelcolor=self._colours.ink, fontsize=9, loc="upper right")

    # parts of charts

    def _panels(self, heights: Sequence[float], left: float = 0.02, above: float = 0.28) -> list[Axes]:
        """Create panels one above the other, each with space for a line of text above and below."""
        whole = sum(heights) + (above + 0.5) * len(heights)
        self._figure.set_size_inches(_WIDTH, whole)
        found, top = [], whole
        for height in heights:
            bottom = top - above - height
            found.append(self._figure.add_axes((left, bottom / whole, 0.98 - left, height / whole)))
            top = bottom - 0.5
        return found

    def _rows(self, rows: Sequence[Row], head: str) -> Axes:
        """Create a panel of bars with titles above them."""
        isLong = any(len(row["title"]) > _TITLE for row in rows)
        (axes,) = self._panels([len(rows) * (0.66 if isLong else 0.5) + 0.1], above=0.02)
        axes.set_ylim(len(rows) - 0.7, -0.8)
        axes.set_yticks([])
        self._frame(axes, head, ["left"])
        return axes

    def _head(self, axes: Axes, text: str, x: float = 0.0) -> None:
        axes.set_title(text, loc="left", fontsize=10.5, color=self._colours.ink, x=x)

    def _plain(self, axes: Axes) -> None:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axes.yaxis.set_major_formatter(_AS_THEY_ARE)
        axes.yaxis.set_minor_formatter(NullFormatter())

    def _frame(self, axes: Axes, head: str, without: Sequence[str]) -> None:
        for name, spine in axes.spines.items():
            spine.set_color(self._colours.faint)
            spine.set_visible(name not in (*without, "top", "right"))
        axes.patch.set_visible(False)
        axes.tick_params(which="both", color=self._colours.faint, labelcolor=self._colours.ink, labelsize=9.5)
        axes.set_xlabel(head, color=self._colours.ink)

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

    def _spread(self, axes: Axes, number: int, values: Sequence[float]) -> None:
        """Draw the range from minimum to maximum."""
        if min(values) < max(values):
            axes.plot([min(values), max(values)], [number] * 2, color=self._colours.ink, linewidth=1)


def _bytes(size: float) -> str:
    for limit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= limit:
            return f"{size / limit:g} {name}"
    return f"{size:g}"
