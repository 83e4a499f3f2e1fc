#!/usr/bin/env python3
"""
Run test modules that L{runtests} names on standard input, and report each result as a line of JSON.

One process runs many modules, one after the other, so that Twisted and the package are imported once. Results
go to the file descriptor that is the first argument; whatever tests print goes to standard output, which the
runner appends to its log. The second argument is the directory for temporary files, the third the directory
where the modules' names begin, which is searched before what is installed; unless C{TXRDMA_TEST_INSTALLED} is
set.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import resource
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final, TextIO
from unittest import TestCase, TestSuite

PROCESS_EVENTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"})
NETWORK_EVENTS: Final = frozenset({"socket.bind", "socket.connect", "socket.sendto"})
STALL_SECONDS: Final = 1.0
"""
Maximum seconds of one iteration of the reactor, unless the class of the test has a reason
(attribute C{blocksBecause}).
"""
SAMPLE_SECONDS: Final = 0.2
DEPTH: Final = 6  # stack frames
HAS_FREEZE: Final = hasattr(gc, "freeze")  # not in PyPy


class Usage:
    """
    What the current test uses besides computing: processes, sockets with an address, or a running reactor.

    The runner fails a test that uses what its group (unit, integration) excludes.
    """

    def __init__(self) -> None:
        self.uses: set[str] = set()

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Record processes and sockets (the hook of L{sys.addaudithook})."""
        if event in PROCESS_EVENTS:
            self.uses.add("process")
        elif event in NETWORK_EVENTS:
            self.uses.add("network")

    def watchReactor(self, reactor: Any) -> None:
        """Record when the reactor runs, which trial does if a test returns a Deferred that has not fired."""
        started = reactor.startRunning

        def startRunning(*arguments: Any, **keywords: Any) -> Any:
            self.uses.add("reactor")
            return started(*arguments, **keywords)

        reactor.startRunning = startRunning


class Stalls:
    """
    The longest iteration of the reactor in the current test: its delayed calls and events of descriptors.

    Time in which the thread waited for a processor does not count, as it depends on other load; nor does the
    time in which the reactor waits for events.

    @ivar seconds: that time; C{event} describes the last event of the iteration, and C{where} the lines of
        code that ran in events that lasted long.
    """

    def __init__(self, reactor: Any) -> None:
        self.clear()
        self._number = 0  # of the current event of the reactor; even between two events
        self._main = threading.get_ident()
        threading.Thread(target=self._sample, daemon=True).start()
        # The time in which this thread, which runs the reactor, waits for a processor.
        self._waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        kind = type(reactor)  # also of the reactors that tests create
        for name in ("runUntilCurrent", "_doReadOrWrite"):
            if hasattr(kind, name):
                setattr(kind, name, self._watched(getattr(kind, name)))

    def clear(self) -> None:
        """Discard the events of the previous test."""
        self.seconds, self.event, self.where, self._sampled = 0.0, "", "", ""
        self._iterationSeconds = 0.0

    @property
    def text(self) -> str:
        """Describe the event that took too long; empty if there was none."""
        if self.seconds <= STALL_SECONDS:
            return ""
        return (
            f"The reactor did nothing else for {self.seconds:.3f} s ({self.event}); {STALL_SECONDS} s may be."
            f" Meanwhile it ran: {self.where or 'too short for a sample'}."
        )

    def _sample(self) -> None:
        """In a thread: record what the reactor's thread does in events that last long."""
        number = 0
        while True:
            time.sleep(SAMPLE_SECONDS)
            before, number = number, self._number
            if number == before and number % 2:
                frames = traceback.extract_stack(sys._current_frames()[self._main])[-DEPTH:]
                self._sampled = ", ".join(
                    f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in frames
                )

    def _watched(self, call: Any) -> Any:
        def watched(reactor: Any, *arguments: Any) -> Any:
            begun = self._ran()
            isFirst = not self._number % 2  # otherwise it is within an event of another reactor
            if isFirst and not arguments:
                self._sampled = ""
            self._number += isFirst
            try:
                return call(reactor, *arguments)
            finally:
                self._number += isFirst
                seconds = self._ran() - begun
                if isFirst:  # an iteration begins with the delayed calls
                    seconds += self._iterationSeconds if arguments else 0.0
                    self._iterationSeconds = seconds
                if seconds > self.seconds:
                    self.seconds, self.event = seconds, repr(arguments[0]) if arguments else "delayed calls"
                    self.where = self._sampled

        return watched

    def _ran(self) -> float:
        """Return the seconds, since any fixed time, in which this thread did not wait for a processor."""
        while True:
            waited, now = self.waited(), time.monotonic()
            if self.waited() == waited:  # otherwise the thread was suspended between the two
                return now - waited

    def waited(self) -> float:
        """Return the seconds for which the thread was ready to run, but another one had the processor."""
        return int(os.pread(self._waits, 100, 0).split()[1]) / 1e9


def flattened(suite: TestCase | TestSuite) -> Iterator[Any]:
    """Return the test cases of a suite, in order."""
    if isinstance(suite, TestSuite):
        for each in suite:
            yield from flattened(each)
    else:
        yield suite


def outcomeOf(result: Any) -> tuple[str, str]:
    """Return outcome and text of one test, from a trial result that ran only this test."""
    bad = [*result.errors, *result.failures]
    if bad:
        return "failed", "\n".join(
            failure.getTraceback() if hasattr(failure, "getTraceback") else str(failure) for _, failure in bad
        )
    if result.unexpectedSuccesses:
        return "failed", "This test was expected to fail, but passed."
    if result.skips:
        return "skipped", str(result.skips[0][1])
    if result.expectedFailures:
        return "skipped", "expected failure"
    return "passed", ""


def processorSeconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(each)[:2]) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def reasonOf(case: Any) -> str | None:
    """Return why a test is slow: the attribute C{slowBecause} of its method or its class."""
    method = getattr(case, getattr(case, "_testMethodName", "__init__"))
    return getattr(method, "slowBecause", None) or getattr(case, "slowBecause", None)


def isChosen(case: TestCase, percent: float, seed: int) -> bool:
    """Return whether a sample of slow tests includes this test; it includes all others."""
    return not reasonOf(case) or 100 * random.Random(f"{seed} {case.id()}").random() < percent


def _nothing() -> None:
    pass


class Worker:
    """
    Loads modules and runs their tests, one at a time.

    After the tests of a module it calls the module's C{tearDownModule}, if there is one, as unittest does
    (trial does not): what the tests share need not use the processor while others run.
    """

    def __init__(self, reports: TextIO, usage: Usage, stalls: Stalls) -> None:
        from twisted.trial.reporter import TestResult
        from twisted.trial.runner import TestLoader, TrialSuite

        self._reports = reports
        self._usage, self._stalls = usage, stalls
        self._frozenModules = 0
        self._makeResult, self._makeSuite, self._loader = TestResult, TrialSuite, TestLoader()

    def report(self, **fields: object) -> None:
        """Write one line to the runner."""
        self._reports.write(json.dumps(fields) + "\n")
        self._reports.flush()

    def run(self, name: str, only: list[str] | None = None, percent: float = 100.0, seed: int = 0) -> None:
        """
        Run the tests of a module or a name inside it; with a list, only these.

        @param percent: of the tests that state why they are slow, run about so many.
        """
        loaded = flattened(self._loader.loadByName(name))
        cases = [case for case in loaded if isChosen(case, percent, seed)]
        if HAS_FREEZE and len(sys.modules) >= self._frozenModules + 100:
            gc.collect()
            gc.freeze()  # collections in many tests then need not examine all modules
            self._frozenModules = len(sys.modules)
        if only is not None:
            chosen = set(only)
            cases = [case for case in cases if case.id() in chosen]
        self.report(event="loaded", name=name, count=len(cases))
        modules = {sys.modules[type(case).__module__] for case in cases}
        while cases:
            self._runCase(cases.pop(0))  # a finished test and its descriptors are released
        for module in modules:
            getattr(module, "tearDownModule", _nothing)()
        self.report(event="done", name=name)

    def _runCase(self, case: Any) -> None:
        self.report(event="started", test=case.id())
        self._usage.uses.clear()
        cpu, waited, begun = processorSeconds(), self._stalls.waited(), time.monotonic()
        outcome, text = self._outcomeOf(case)
        seconds, waitedSeconds = time.monotonic() - begun, self._stalls.waited() - waited
        cpuSeconds = processorSeconds() - cpu
        if outcome == "passed" and self._stalls.text and not hasattr(case, "blocksBecause"):
            # A single stall may be caused by a busy disk, a repeated one by the code.
            outcome, text = self._outcomeOf(case)
            if outcome == "passed" and self._stalls.text:
                outcome, text = "failed", self._stalls.text
        self.report(
            event="ended",
            test=case.id(),
            outcome=outcome,
            text=text,
            seconds=round(seconds, 4),
            waitedSeconds=round(waitedSeconds, 4),
            cpuSeconds=round(cpuSeconds, 4),
            uses=sorted(self._usage.uses),
            reason=reasonOf(case),
        )

    def _outcomeOf(self, case: Any) -> tuple[str, str]:
        result = self._makeResult()
        self._stalls.clear()
        self._makeSuite([case]).run(result)
        return outcomeOf(result)


def main(arguments: list[str]) -> None:
    """Serve until standard input ends."""
    faulthandler.enable()
    if HAS_FREEZE:
        # The defaults spend a tenth of all processor time on collections of a heap that has all modules.
        gc.set_threshold(20_000, 20, 20)
    os.chdir(arguments[1])
    if "TXRDMA_TEST_INSTALLED" not in os.environ:
        sys.path.insert(0, arguments[2])
    usage = Usage()
    sys.addaudithook(usage.audit)
    from twisted.internet import reactor
    from twisted.logger import globalLogBeginner, textFileLogObserver

    usage.watchReactor(reactor)
    # Before logging begins, Twisted stores all events, with the frames of exceptions and what these refer to.
    observer = textFileLogObserver(open("test.log", "a", encoding="utf-8"))
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    descriptor = int(arguments[0])
    os.set_inheritable(descriptor, False)
    with open(descriptor, "w", encoding="utf-8") as reports:
        worker = Worker(reports, usage, Stalls(reactor))
        worker.report(event="ready")
        requests, sys.stdin = sys.stdin, open(os.devnull)
        for line in requests:
            request = json.loads(line)
            worker.run(**request)


if __name__ == "__main__":
    main(sys.argv[1:])
