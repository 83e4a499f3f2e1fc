"""
Directives for Sphinx that take their content from the code, so that pages and code cannot differ.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from html import escape
from importlib import import_module
from pathlib import Path
from typing import cast, Final

from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.parsers.rst import directives, Parser
from docutils.utils import new_document
from names import isTest, referencePage
from pygraphviz import AGraph
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.logging import getLogger
from sphinx.util.typing import ExtensionMetadata

_PARTS: Final = ("orderly", "abnormal")
_ABNORMAL: Final = {"abort", "fail", "peerAborted", "readUp", "expired"}
_ENDS: Final = ("server", "client")
_CM: Final = {
    "active": ("core.opening", "REQ_SENT MRA_REQ_RCVD REP_RCVD MRA_REP_SENT"),
    "passive": ("core.opening", "REQ_RCVD MRA_REQ_SENT REP_SENT MRA_REP_RCVD"),
    "closing": ("core.closing", ""),
    "alternate": ("core.alternate", ""),
    "resolution": ("core.sidr", ""),
    "transport": ("connections._life", ""),
}
"""Pictures of the communication manager's machines: the module, and the states in the middle."""
_STRUCTURES: Final = (
    *(f"txrdma.mad.layouts.{name}" for name in ("smp", "sa", "pma", "baseboard", "congestion", "devices")),
    *("txrdma.mad.layouts.messages", "txrdma.mad.vendor", "txrdma.cm.layouts.messages"),
)
"""The modules that declare structures of management datagrams."""
_log = getLogger(__name__)
_ALT: Final = "The states of a connection and what leads from one to the next"
_EDGE: Final = re.compile(r'"(.+)" -> "(.+)" \[label="(.*)"\];')
_BREAK: Final = "\\n"


def rows(heads: list[str], cells: list[list[str]]) -> list[str]:
    """Return a table in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [heads, *cells]:
        lines += [f"   {'* -' if not number else '  -'} {cell}" for number, cell in enumerate(row)]
    return lines


class FromCode(SphinxDirective):
    """A directive that generates reStructuredText, also for pages in Markdown."""

    def lines(self) -> list[str]:
        """Return the reStructuredText."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the code may have changed
        document = new_document(f"<{self.name}>", get_default_settings(Parser))
        Parser().parse("\n".join(self.lines()), document)
        return document.children


class Machine(SphinxDirective):
    """A directive that draws a state machine; its argument selects the machine or a part of it."""

    required_arguments = 1

    def graph(self, choice: str) -> str:
        """Return the graph in the DOT language."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        drawn = AGraph(string=self.graph(self.arguments[0])).draw(format="svg", prog="dot").decode()
        svg = drawn[drawn.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{_ALT}" ', 1)
        figure = f'<figure class="drawn graph">{svg}</figure>'
        return [nodes.raw("", figure, format="html")]


class ClosingMachine(Machine):
    """A diagram of one part of the close state machine: C{orderly} or C{abnormal}."""

    def graph(self, choice: str) -> str:
        return closingGraph(isAbnormal=directives.choice(choice, _PARTS) == _PARTS[1])


class HandshakeMachine(Machine):
    """A diagram of the state machine of the CLC handshake: C{server} or C{client}."""

    def graph(self, choice: str) -> str:
        return handshakeGraph(isServer=directives.choice(choice, _ENDS) == _ENDS[0])


class ConnectionMachine(Machine):
    """A diagram of a state machine of the communication manager, or of a part of one: see L{_CM}."""

    def graph(self, choice: str) -> str:
        return connectionGraph(directives.choice(choice, tuple(_CM)))


def connectionGraph(part: str) -> str:
    """Return a state machine of the communication manager in the DOT language, without its actions."""
    name, shown = _CM[part]
    table = import_module(f"txrdma.cm.{name}").TABLE
    places = {place: place for place in table.stateNames}
    if shown:
        places = {place: place for place in ("IDLE", *shown.split(), "ESTABLISHED", "ENDED")}
    labels: dict[tuple[str, str], list[str]] = {}
    for here, what, there, _actions in table.rows:
        if here != there and here in places and there in places:
            labels.setdefault((here, there), []).append(what.__name__)
    edges = [
        f'"{here}" -> "{there}" [label="{_BREAK.join(names)}"];' for (here, there), names in labels.items()
    ]
    return _drawn(part, "TB", places, edges)


def handshakeGraph(isServer: bool) -> str:
    """Return the handshake of one end in the DOT language, without inputs that change nothing."""
    from txrdma.kit.machines import Machines
    from txrdma.smc.handshake._machine import _machine

    machines = cast(Machines, _machine(isServer))
    labels: dict[tuple[str, str], list[str]] = {}
    for here, what, there in machines.transitions():
        if here != there:
            labels.setdefault((here, there), []).append(what)
    places = {(first := machines.states[0]): first}
    while further := {there for here, there in labels if here in places} - set(places):
        places |= dict(zip(further, further, strict=True))  # what the other end alone has is not reached
    edges = [
        f'"{here}" -> "{there}" [label="{_BREAK.join(sorted(names))}"];'
        for (here, there), names in sorted(labels.items())
        if here in places
    ]
    return _drawn("handshake", "TB", dict(sorted(places.items())), edges)


def closingGraph(isAbnormal: bool) -> str:
    """Return a part of the close state machine in the DOT language."""
    from txrdma.smc.flow.closing import diagram

    places: dict[str, str] = {}
    edges = []
    for here, there, label in _EDGE.findall(diagram()):
        inputs = [
            line.replace(" / ", "\\n/ ")
            for line in label.split("\\n")
            if (line.split(" ")[0] in _ABNORMAL or "ABORT" in here + there) == isAbnormal
        ]
        if inputs:
            places.update((place, place.replace(" (", "\\n(")) for place in (here, there))
            edges.append(f'"{here}" -> "{there}" [label="{_BREAK.join(inputs)}"];')
    return _drawn("closing", "LR" if isAbnormal else "TB", places, edges)


def _drawn(name: str, direction: str, places: dict[str, str], edges: list[str]) -> str:
    """Return a graph of states, by their labels."""
    return "\n".join(
        [
            f"digraph {name} {{ rankdir={direction}; bgcolor=transparent; ranksep=0.3;",
            "node [shape=box, style=rounded, fontname=Helvetica, fontsize=11, height=0.3];",
            "edge [fontname=Helvetica, fontsize=10];",
            *(f'"{place}" [label="{label}"];' for place, label in places.items()),
            *edges,
            "}",
        ]
    )


def memberDocs(kind: type) -> dict[str, str]:
    """Return the docstrings after the members of an enumeration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.targets[0].id] = " ".join(str(following.value.value).split())
    return found


class Diagnoses(FromCode):
    """A table of all reasons to decline SMC."""

    def lines(self) -> list[str]:
        from txrdma.smc.wire.clc import Diagnosis

        meanings = memberDocs(Diagnosis)
        cells = [
            [f"``{each.name}``", f"``{each.value:08X}``", meanings.get(each.name, "")] for each in Diagnosis
        ]
        return rows(["Name", "Code", "Meaning"], cells)


class Limits(FromCode):
    """A table of all limits of what peers can make a process store, do or wait for."""

    def lines(self) -> list[str]:
        from txrdma.test.support.limits import LIMITS

        cells = [
            [
                f"``{each.part}``",
                each.name,
                f"{each.value:,}",
                f"``{each.key}=``" if each.key else "",
                each.reached,
            ]
            for each in LIMITS
        ]
        return rows(["Interface", "Limited", "Default", "Key", "At the limit"], cells)


class PrivateNames(FromCode):
    """A table of the private names of Twisted that the package uses."""

    def lines(self) -> list[str]:
        from txrdma.kit.twistedprivate import NAMES

        cells = [
            [
                f"``{each.owner.removeprefix('twisted.')}.{each.name}``",
                ", ".join(f"``{module.removeprefix('txrdma.')}``" for module in each.modules),
                each.purpose,
                each.fallback or "The module refuses to be imported, and names what is missing.",
            ]
            for each in NAMES
        ]
        return rows(["Name in ``twisted``", "Used by", "What for", "Where Twisted lacks it"], cells)


class PublicInterface(FromCode):
    """Tables of the public interface, one for each part."""

    def lines(self) -> list[str]:
        tools = str(Path(__file__).parents[2] / "tools")
        sys.path.insert(0, tools)
        try:
            parts = import_module("interface").interface()
        finally:
            sys.path.remove(tools)
        lines: list[str] = []
        for title, part in parts.items():
            groups: dict[str, list[str]] = {}
            for line in part:
                owner, _, name = line.rpartition(" ")
                groups.setdefault(owner, []).append(f"``{name}``")
            cells = [
                [f"``{owner}``" if owner else "all", ", ".join(names)] for owner, names in groups.items()
            ]
            lines += [f".. rubric:: {title}", "", *rows(["Of", "Names"], cells), ""]
        return lines


class ManagementCalls(FromCode):
    """A table of all calls of management datagrams, with links to the structures that they take."""

    def lines(self) -> list[str]:
        from txrdma.mad.layouts.attributes import allAttributes, RPCS

        for module in _STRUCTURES:
            import_module(module)
        places = {name: place for place, name in enumerate(RPCS)}
        found: dict[tuple[str, ...], list[str]] = {}
        for _, kind in sorted(allAttributes().items()):
            calls = tuple(sorted(kind.rpcs, key=places.__getitem__))
            link = f"`{kind.__name__} <api/{kind.__module__}.{kind.__name__}.html>`__"
            if link not in found.setdefault(calls, []):
                found[calls].append(link)
        cells = [
            [", ".join(f"``{call}``" for call in calls), ", ".join(links)]
            for calls, links in sorted(found.items(), key=lambda each: [places[call] for call in each[0]])
        ]
        return rows(["Calls", "Structures"], cells)


class ScriptWords(FromCode):
    """A table of the words in scripts of conversations."""

    def lines(self) -> list[str]:
        from txrdma.testing.streams.script import OCCASIONS, STEPS

        def cells(words: Mapping[str, str]) -> list[list[str]]:
            return [[f"``{form}``", meaning.replace("`", "``")] for form, meaning in words.items()]

        return [
            *rows(["Occasion", "When"], cells(OCCASIONS)),
            "",
            *rows(["Step", "What it does"], cells(STEPS)),
        ]


class CommandHelp(FromCode):
    """The output of C{--help} of a command; the argument is what follows C{python -m}."""

    required_arguments = 1
    final_argument_whitespace = True

    def lines(self) -> list[str]:
        command = [sys.executable, "-m", *self.arguments[0].split(), "--help"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if not text:
            raise self.error(f"{' '.join(command)} printed nothing")
        return ["::", "", *(f"    {line}" for line in text.rstrip().splitlines())]


def dottedName(text: str) -> nodes.Node:
    """Return a name that may be broken after its dots, for narrow columns."""
    broken = escape(text).replace(".", ".<wbr>")
    return nodes.raw("", f'<code class="docutils literal notranslate">{broken}</code>', format="html")


class API(SphinxRole):
    """A role for names of modules, classes and members below C{txrdma}, linked to the API reference."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_reread()  # the code may have changed
        page = referencePage(f"txrdma.{self.text}")
        if page is None:
            _log.warning("there is no txrdma.%s", self.text, location=self.get_location())
            return [dottedName(self.text)], []
        return [nodes.reference("", "", dottedName(self.text), refuri=f"api/{page}")], []


class Shown(SphinxRole):
    """A role for names of tests below C{txrdma.test}; an unknown test is a warning."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_reread()
        if not isTest(self.text):
            _log.warning("there is no test %s", self.text, location=self.get_location())
        return [dottedName(self.text)], []


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the extension."""
    app.add_directive("closing-machine", ClosingMachine)
    app.add_directive("handshake-machine", HandshakeMachine)
    app.add_directive("connection-machine", ConnectionMachine)
    app.add_directive("diagnoses", Diagnoses)
    app.add_directive("limits", Limits)
    app.add_directive("management-calls", ManagementCalls)
    app.add_directive("private-names", PrivateNames)
    app.add_directive("public-interface", PublicInterface)
    app.add_directive("script-words", ScriptWords)
    app.add_directive("command-help", CommandHelp)
    app.add_role("api", API())
    app.add_role("shown", Shown())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
