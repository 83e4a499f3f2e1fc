"""
Run suites under trial, and write the result of each test as JSON.

Planning runs outside of the guest, tests run inside::

    python -m txrdma.test.system.kernel.results plan FOLDER NAME...    list the tests: plan.json
    python -m txrdma.test.system.kernel.results plan-ci FOLDER         list those of CI
    python -m txrdma.test.system.kernel.results run FOLDER NAME...     run them: results.jsonl
    python -m txrdma.test.system.kernel.results retry FOLDER NAME...   repeat those that failed or did not end
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from twisted.trial.reporter import VerboseTextReporter
from twisted.trial.runner import TestLoader, TrialRunner
from twisted.trial.unittest import TestSuite

from txrdma.test.system.kernel import Box, CI_BOX, CI_TESTS, recorded


def flattened(suite: Any) -> Iterator[Any]:
    """Return the test cases of a suite."""
    if isinstance(suite, TestSuite) or hasattr(suite, "_tests"):
        for each in suite:
            yield from flattened(each)
    else:
        yield suite


def plan(names: list[str]) -> list[dict[str, Any]]:
    """
    Return the tests of each module, its boxes, and the witnesses of its classes.

    A name that can't be loaded becomes a test that fails.
    """
    modules: dict[str, dict[str, Any]] = {}
    for test in flattened(TestLoader().loadByNames(names, recurse=True)):
        module = type(test).__module__
        if module.startswith("twisted."):
            module = test.id()  # trial's placeholder for a module that can't be loaded
        empty = {"module": module, "boxes": boxes(module), "tests": [], "witnesses": {}}
        entry = modules.setdefault(module, empty)
        entry["tests"].append(test.id())
        witness = getattr(test, "witness", None)
        if witness is not None:
            entry["witnesses"][f"{module}.{type(test).__name__}"] = asdict(witness)
    return list(modules.values())


def planForCI() -> list[dict[str, Any]]:
    """Return the plan of L{CI_TESTS}, whose modules all share L{CI_BOX}."""
    modules = plan([f"{Box.__module__}.{name}" for name in CI_TESTS])
    return [{**module, "boxes": [asdict(CI_BOX)]} for module in modules]


def boxes(module: str) -> list[dict[str, Any]]:
    """Return the guests that a module requests."""
    wanted = getattr(sys.modules.get(module), "BOXES", (Box(),))
    return [asdict(box) for box in wanted]


class JSONReporter(VerboseTextReporter):
    """Reports like trial, and also writes a line of JSON for each test when it ends."""

    results: TextIO

    def startTest(self, test: Any) -> None:
        recorded()
        self._outcome, self._reason = "", ""
        self._begun = time.monotonic()
        super().startTest(test)

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        result = {
            "id": test.id(),
            "outcome": self._outcome,
            "reason": self._reason,
            "seconds": round(time.monotonic() - self._begun, 2),
            "facts": recorded(),
        }
        self.results.write(json.dumps(result) + "\n")
        self.results.flush()

    def _became(self, outcome: str, reason: object = "") -> None:
        if self._outcome != "failed":  # otherwise the first failure is reported
            self._outcome, self._reason = outcome, str(reason)

    def addSuccess(self, test: Any) -> None:
        self._became("passed")
        super().addSuccess(test)

    def addFailure(self, test: Any, fail: Any) -> None:
        self._failed(fail)
        super().addFailure(test, fail)

    def addError(self, test: Any, error: Any) -> None:
        self._failed(error)
        super().addError(test, error)

    def _failed(self, fail: Any) -> None:
        if isinstance(fail, tuple):
            self._became("failed", fail[1])
        else:
            self._became("failed", fail.getErrorMessage())

    def addSkip(self, test: Any, reason: Any) -> None:
        self._became("skipped", reason)
        super().addSkip(test, reason)

    def addExpectedFailure(self, test: Any, failure: Any, todo: Any = None) -> None:
        self._became("skipped", f"to do: {todo.reason if todo else ''}")
        super().addExpectedFailure(test, failure, todo)

    def addUnexpectedSuccess(self, test: Any, todo: Any = None) -> None:
        self._became("failed", "was expected to fail, and passed")
        super().addUnexpectedSuccess(test, todo)


def run(folder: Path, names: list[str]) -> bool:
    """Run tests; return whether all passed."""
    with open(folder / "results.jsonl", "a") as results, tempfile.TemporaryDirectory() as scratch:

        class Reporter(JSONReporter):
            pass

        if results.tell():
            results.write("\n")  # after a line that a killed process did not complete
        Reporter.results = results
        runner = TrialRunner(
            Reporter,
            logfile=str(folder / "test.log"),
            workingDirectory=str(Path(scratch, "trial")),
            realTimeErrors=True,
        )
        return bool(runner.run(TestLoader().loadByNames(names, recurse=True)).wasSuccessful())


def unfinished(folder: Path, names: list[str]) -> list[str]:
    """Return the tests that neither passed nor skipped."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    results = [json.loads(line) for line in lines if line.endswith("}")]
    done = {result["id"] for result in results if result["outcome"] != "failed"}
    return [name for name in names if name not in done]


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status."""
    match arguments:
        case ["plan", folder, *names]:
            Path(folder, "plan.json").write_text(json.dumps(plan(names)))
            return 0
        case ["plan-ci", folder]:
            Path(folder, "plan.json").write_text(json.dumps(planForCI()))
            return 0
        case ["retry", folder, *names]:
            return 0 if run(Path(folder), unfinished(Path(folder), names)) else 1
        case ["run", folder, *names]:
            return 0 if run(Path(folder), names) else 1
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
