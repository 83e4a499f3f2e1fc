"""Log events have the texts of exceptions: the traceback of an exception keeps the memory of its frames."""

from __future__ import annotations

import ast
import builtins
import re

from twisted.trial.unittest import SynchronousTestCase

import txrdma.error
from txrdma.test.unit.test_layers import modules, packageOf

LOGS = {"log", "_log", "_rateLimited"}
LEVELS = {"critical", "debug", "emit", "error", "info", "warn"}
TEXTS = {"advised", "errorText", "repr"}
"""Functions that return the text of an exception."""

EXCEPTIONS = {"Failure"} | {
    name
    for module in (builtins, txrdma.error)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def exceptions(function: ast.AST) -> set[str]:
    """Return the names of exceptions in a function: those that C{except} binds or that are annotated so."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler):
            found.add(str(node.name))
        elif isinstance(node, ast.arg) and node.annotation is not None:
            if EXCEPTIONS & {*ast.unparse(node.annotation).split(" | ")}:
                found |= {node.arg, f"{node.arg}.value"}
    return found


def fields(function: ast.AST) -> dict[ast.keyword, str]:
    """Return the fields of the log events that a function writes, with their values."""
    return {
        field: ast.unparse(field.value)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS
        if ast.unparse(call.func.value).split(".")[-1] in LOGS
        for field in call.keywords
    }


def violations(source: str) -> set[int]:
    """Return the lines of fields that are exceptions, and of fields C{error} that are not made texts."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and (written := fields(function)):
            names = exceptions(function)
            for field, value in written.items():
                isText = field.arg != "error" or value.split("(")[0] in TEXTS
                if not isText or value in names or value.endswith(".getErrorMessage()"):
                    found.add(field.lineno)
    return found


class LogFieldTests(SynchronousTestCase):
    slowBecause = "Python parses every module of the package"

    def test_texts(self) -> None:
        """No log event has an exception, other than those with tracebacks, which C{Logger.failure} writes."""
        wrong = [
            f"{module}:{line}"
            for module, path in modules()
            if packageOf(module) != "test"
            if not LOGS.isdisjoint(re.findall(r"\w+", source := path.read_text()))
            for line in sorted(violations(source))
        ]
        self.assertEqual(wrong, [])

    def test_violations(self) -> None:
        """Exceptions are found by their names and annotations, and by the name of the field."""
        for isWrong, call in (
            (True, "_log.warn('{why}', why=caught)"),
            (True, "self._log.info('{why}', why=failure)"),
            (True, "log.debug('{why}', why=failure.value)"),
            (True, "_rateLimited.warn(1, '{error}', error=str(caught))"),
            (True, "_log.error('{error}', error=failure.getErrorMessage())"),
            (True, "_log.error('{error}', error=each)"),
            (False, "_log.warn('{error}', error=errorText(caught))"),
            (False, "_log.warn('{why}', why=text)"),
            (False, "_log.failure('{why}', failure, why=text)"),
            (False, "parser.error('{why}', error=caught)"),
        ):
            source = f"def f(failure: Failure | None, text: str):\n try: g()\n except E as caught: {call}"
            self.assertEqual(bool(violations(source)), isWrong, call)
