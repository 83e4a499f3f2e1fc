"""
Sequence diagrams, drawn as SVG that takes its colours from the page.

A line of the directive C{sequence} is one of these::

    client = The client                    a lane, from left to right
    phase: On one host                     a heading
    client -> server (tcp): CLC Proposal   a message, and what carries it
    client x> server (link1): CDC          one that does not arrive
    note client: connectionMade()          what happens there
    recorded: handshake                    steps of a connection that is played now: L{recorded.part}
    recorded: loss                         packets around a loss, played now: L{btlrecorded.loss}
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from html import escape

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

CARRIERS = {
    "unix": "UNIX",
    "tcp": "TCP",
    "rdma": "RDMA",
    "link1": "link 1",
    "link2": "link 2",
    "command": "command",
    "data": "data",
}
"""What messages go by, and how the picture calls it."""

_WIDTH, _EDGE, _LINE = 440, 64, 17
_SANS, _MONO = 6.7, 7.0  # the width of a letter, about
_LANE = re.compile(r"(\w+) = (.+)")
_MESSAGE = re.compile(r"(\w+) (->|x>) (\w+) \((\w+)\): (.+)")
_NOTE = re.compile(r"note (\w+): (.+)")
_OTHER = re.compile(r"(phase|recorded): (.+)")


@dataclass(frozen=True)
class Step:
    """
    One step.

    @ivar kind: C{"message"}, C{"lost"}, C{"note"} or C{"phase"}.
    @ivar source: the lane where it happens or begins; C{target}: where it ends.
    @ivar carrier: one of L{CARRIERS}.
    """

    kind: str
    source: str
    target: str
    carrier: str
    text: str


def parsed(lines: list[str]) -> tuple[dict[str, str], list[Step]]:
    """
    Return lanes and steps.

    @raise ValueError: a line is none of those that there are.
    """
    lanes: dict[str, str] = {}
    steps: list[Step] = []
    for line in filter(None, map(str.strip, lines)):
        if found := _MESSAGE.fullmatch(line):
            source, arrow, target, carrier, text = found.groups()
            CARRIERS[carrier], lanes[source], lanes[target]
            steps.append(Step("message" if arrow == "->" else "lost", source, target, carrier, text))
        elif found := _NOTE.fullmatch(line):
            steps.append(Step("note", found[1], "", "", found[2]))
        elif found := _LANE.fullmatch(line):
            lanes[found[1]] = found[2]
        elif (found := _OTHER.fullmatch(line)) and found[1] == "phase":
            steps.append(Step("phase", "", "", "", found[2]))
        elif found and found[2] == "loss":
            from btlrecorded import loss

            steps += loss()
        elif found:
            from recorded import part

            steps += part(found[2])
        else:
            raise ValueError(f"{line!r} is no line of a sequence")
    return lanes, steps


class Drawing:
    """An SVG that grows downwards."""

    def __init__(self, lanes: dict[str, str]) -> None:
        gap = (_WIDTH - 2 * _EDGE) / (len(lanes) - 1)
        self._places = {name: _EDGE + number * gap for number, name in enumerate(lanes)}
        self._parts: list[str] = []
        for name, title in lanes.items():
            self._y = 0.0
            self._box(self._places[name], [title], "lane", _SANS)
        self._begin = self._y = 28

    def svg(self, title: str) -> str:
        """Return the whole SVG."""
        height = self._y + 14
        lines = "".join(
            f'<line class="life" x1="{x:g}" x2="{x:g}" y1="{self._begin}" y2="{height:g}"/>'
            for x in self._places.values()
        )
        return (
            f'<svg class="sequence" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
            f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">{lines}{"".join(self._parts)}</svg>'
        )

    def add(self, step: Step) -> None:
        """Draw the next step."""
        if step.kind == "phase":
            self._y += 12
            lines = textwrap.wrap(step.text, int((_WIDTH - 20) / _SANS))
            self._box(_WIDTH / 2, lines, "phase", _SANS, _WIDTH - 2)
        elif step.kind == "note":
            self._y += 9
            place = self._places[step.source]
            self._box(place, textwrap.wrap(step.text, int(_WIDTH * 0.55 / _MONO)), "note", _MONO)
        else:
            self._arrow(step)

    def _box(self, x: float, lines: list[str], kind: str, letter: float, width: float = 0) -> None:
        width = width or max(map(len, lines)) * letter + 16
        left = min(max(x - width / 2, 1), _WIDTH - width - 1)
        height = len(lines) * _LINE + 7
        self._parts.append(
            f'<rect class="{kind}" x="{left:g}" y="{self._y + 1:g}" width="{width:g}" height="{height:g}"'
            ' rx="5"/>'
        )
        for number, line in enumerate(lines):
            self._text(left + width / 2, self._y + 17 + number * _LINE, escape(line), kind)
        self._y += height + 1

    def _text(self, x: float, y: float, text: str, kind: str) -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>')

    def _arrow(self, step: Step) -> None:
        here, there = self._places[step.source], self._places[step.target]
        label = CARRIERS[step.carrier]
        lines = textwrap.wrap(f"{label} {step.text}", int((abs(there - here) - 20) / _SANS))
        lines = [escape(line) for line in lines]
        lines[0] = f'<tspan class="{step.carrier}">{label}</tspan>' + lines[0][len(label) :]
        self._y += 6
        for line in lines:
            self._y += _LINE
            self._text((here + there) / 2, self._y - 3, line, "said")
        self._y += 4 if step.kind == "message" else 8
        back = 9 if there > here else -9
        end = there if step.kind == "message" else (here + 2 * there) / 3
        y = self._y
        self._parts.append(f'<path class="{step.carrier}" d="M{here:g} {y:g}H{end - back / 2:g}"/>')
        head = f"M{end - back:g} {y - 5:g}L{end:g} {y:g}L{end - back:g} {y + 5:g}Z"
        if step.kind == "lost":
            head = f"M{end - 6:g} {y - 6:g}l12 12m0-12l-12 12"
        self._parts.append(f'<path class="head {step.carrier}" d="{head}"/>')
        self._y += 3


class Sequence(SphinxDirective):
    """
    The directive for a sequence diagram; C{coming} marks a diagram of something that is not implemented yet.
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"coming": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # what is recorded may have changed
        title, coming = self.arguments[0], self.options.get("coming")
        try:
            lanes, steps = parsed(list(self.content))
        except (KeyError, ValueError) as error:
            raise self.error(f"sequence {title!r}: {error}") from error
        drawing = Drawing(lanes)
        for step in steps:
            drawing.add(step)
        banner = f"<p>{escape(coming)}</p>" if coming else ""
        kind = "drawn coming" if coming else "drawn"
        caption = f"<figcaption>{escape(title)}</figcaption>"
        figure = f'<figure class="{kind}">{banner}{drawing.svg(title)}{caption}</figure>'
        return [nodes.raw("", figure, format="html")]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the extension."""
    app.add_directive("sequence", Sequence)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
