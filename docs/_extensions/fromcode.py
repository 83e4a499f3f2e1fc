"""
Directives for Sphinx that take their content from the code, so that the pages can't tell anything else.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping

from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.parsers.rst import Parser
from docutils.utils import new_document
from sphinx.application import Sphinx
from sphinx.ext.graphviz import graphviz
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata


def rows(heads: list[str], cells: list[list[str]]) -> list[str]:
    """A table in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [heads, *cells]:
        lines += [f"   {'* -' if not number else '  -'} {cell}" for number, cell in enumerate(row)]
    return lines


class FromCode(SphinxDirective):
    """A directive whose reStructuredText is computed, whatever the page itself is written in."""

    def lines(self) -> list[str]:
        """What shall stand there."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        document = new_document(f"<{self.name}>", get_default_settings(Parser))
        Parser().parse("\n".join(self.lines()), document)
        return document.children


class ClosingMachine(SphinxDirective):
    """The picture of the close state machine; a list of its transitions where there is no C{dot}."""

    def run(self) -> list[nodes.Node]:
        from txrdma.smc._closing import diagram

        source = diagram()
        if shutil.which("dot"):
            node = graphviz()
            node["code"] = source
            node["options"] = {}
            node["alt"] = "The states of a connection and what leads from one to the next"
            return [node]
        return [nodes.literal_block(source, source)]


def memberDocs(kind: type) -> dict[str, str]:
    """The strings that stand behind the members of an enumeration."""
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
    """Every reason to decline SMC."""

    def lines(self) -> list[str]:
        from txrdma.smc.clc import Diagnosis

        meanings = memberDocs(Diagnosis)
        cells = [
            [f"``{each.name}``", f"``{each.value:08X}``", meanings.get(each.name, "")] for each in Diagnosis
        ]
        return rows(["Name", "Code", "Meaning"], cells)


class ScriptWords(FromCode):
    """What scripts of conversations may say."""

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
    """What a command says of itself."""

    required_arguments = 1
    final_argument_whitespace = True

    def lines(self) -> list[str]:
        command = [sys.executable, "-m", *self.arguments[0].split(), "--help"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return ["::", "", *(f"    {line}" for line in said.rstrip().splitlines())]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Called by Sphinx."""
    app.add_directive("closing-machine", ClosingMachine)
    app.add_directive("diagnoses", Diagnoses)
    app.add_directive("script-words", ScriptWords)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
