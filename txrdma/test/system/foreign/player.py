"""
Run test suites by trial in this process, unchanged or over C{smc:}, and write each outcome::

    python -m txrdma.test.system.foreign.player --over smc --results FILE NAME ...

The file is JSON: for each test its outcome and the connections that it had, by C{SMC-R} or the reason of a
fallback.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from twisted.application.reactors import installReactor
from twisted.python.failure import Failure
from twisted.python.usage import Options, UsageError
from twisted.trial.reporter import VerboseTextReporter
from twisted.trial.runner import TestLoader, TrialRunner


class Recorder(VerboseTextReporter):
    """A reporter that records outcomes and connections of tests by their names."""

    outcomes: dict[str, list[str]]
    connections: dict[str, Counter[str]]
    _current = ""

    def startTest(self, method: Any) -> None:
        type(self)._current = method.id()
        super().startTest(method)

    def _record(self, test: Any, outcome: str) -> None:
        self.outcomes.setdefault(test.id(), []).append(outcome)

    def addSuccess(self, test: Any) -> None:
        self._record(test, "passed")
        super().addSuccess(test)

    def addSkip(self, test: Any, reason: str) -> None:
        self._record(test, f"skipped: {reason}")
        super().addSkip(test, reason)

    def addExpectedFailure(self, test: Any, *rest: Any) -> None:
        self._record(test, "failed as expected")
        super().addExpectedFailure(test, *rest)

    def addUnexpectedSuccess(self, test: Any, *rest: Any) -> None:
        self._record(test, "passed unexpectedly")
        super().addUnexpectedSuccess(test, *rest)

    def addError(self, test: Any, error: Any) -> None:
        self._record(test, _described(error))
        super().addError(test, error)

    def addFailure(self, test: Any, fail: Any) -> None:
        self._record(test, _described(fail))
        super().addFailure(test, fail)

    @classmethod
    def connected(cls, transport: Any) -> None:
        """Record a connection that has begun to carry its protocol."""
        smc = transport.smc
        reason = smc.fallbackReason
        how = smc.mode if smc.mode == "SMC-R" else getattr(reason, "name", str(reason))
        cls.connections.setdefault(cls._current, Counter())[how] += 1


def _described(error: Any) -> str:
    failure = error if isinstance(error, Failure) else Failure(error[1], error[0], error[2])
    return f"{type(failure.value).__name__}: {failure.getErrorMessage()}"[:500]


class PlayerOptions(Options):
    optParameters = [
        ["over", None, "smc", "tcp: as they are; smc: what they do by TCP is done by SMC-R"],
        ["results", None, None, "the file to write"],
        ["reactor", None, "epoll", "as trial's --reactor"],
    ]

    def parseArgs(self, *names: str) -> None:
        """Store the names of test modules, classes or methods."""
        if self["results"] is None or self["over"] not in ("tcp", "smc"):
            raise UsageError("where do the results go?")
        self["names"] = names


def _count(connected: Callable[[Any], None]) -> None:
    """Record each connection of C{smc:} endpoints, with SMC-R or the reason of its fallback."""
    from txrdma.smc.stream import connectionstatus as status

    register = status.register

    def registered(transport: Any) -> None:
        connected(transport)
        register(transport)

    status.register = registered


def main(arguments: list[str]) -> int:
    """Run the suites, and return the number of failed tests, limited to an exit status."""
    options = PlayerOptions()
    options.parseOptions(arguments)
    installReactor(options["reactor"])

    class Fresh(Recorder):
        outcomes = {}
        connections = {}

    _count(Fresh.connected)
    if options["over"] == "smc":
        from txrdma.smc.signalling import localclient  # after the reactor was installed
        from txrdma.test.system.foreign import everywhere

        everywhere.install()
        localclient.ANSWER_SECONDS = 60.0  # type: ignore[misc]  # a listener may wait long for a processor
    results = Path(options["results"]).absolute()
    runner = TrialRunner(Fresh, tracebackFormat="default", workingDirectory=f"{results}.trial")
    begun = monotonic()
    result = runner.run(TestLoader().loadByNames(list(options["names"]), recurse=True))
    reported = {
        "seconds": monotonic() - begun,
        "outcomes": Fresh.outcomes,
        "connections": {name: dict(counts) for name, counts in Fresh.connections.items()},
    }
    results.write_text(json.dumps(reported, indent=1))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
