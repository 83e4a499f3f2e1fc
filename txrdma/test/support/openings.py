"""Contract: what opens several resources opens all or none of them."""

from __future__ import annotations

import errno
import gc
import os
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any, Final

from twisted.internet import reactor as theReactor
from twisted.internet.task import deferLater

from txrdma.error import RDMAError
from txrdma.monitor.series.database import SQLite
from txrdma.testing.failingcalls import EndpointCase, FailingCalls, OPENING_CALLS

reactor: Any = theReactor

CODES: Final = (errno.EMFILE, errno.ENOMEM)
"""Error numbers of the calls that fail."""

_SETTLE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1
_DONE: Final = "it succeeded"


def _newThread(name: str) -> Exception:
    return RuntimeError("can't start new thread")


def _noDatabase(name: str) -> Exception:
    return sqlite3.OperationalError("unable to open database file")


def _diskFull(name: str) -> Exception:
    return sqlite3.OperationalError("database or disk is full")


_OTHER_ERRORS: Final[dict[Any, Any]] = {
    threading.Thread: _newThread,
    sqlite3: _noDatabase,
    SQLite: _diskFull,
}
"""Functions that create the exceptions of calls that raise no L{OSError}, by the owners of the calls."""


class OpeningContract:
    """
    For a C{TestCase} on the real reactor: if any one of L{OPENING_CALLS} fails, nothing is left.

    @cvar calls: the calls that fail. @cvar codes: the error numbers.
    @cvar expected: exceptions by which an opening may fail.
    @cvar mostLogged: maximum number of exceptions that are logged when a call fails.
    @cvar mayCollect: whether garbage may remain, such as sockets of Twisted that could not be used.
    """

    calls: Sequence[tuple[Any, str]] = OPENING_CALLS
    codes: Sequence[int] = CODES
    expected: tuple[type[BaseException], ...] = (RDMAError,)
    mostLogged = 0
    mayCollect = False

    async def use(self) -> None:
        """Open, use and close everything; raise one of the expected exceptions if that failed."""
        raise NotImplementedError

    def left(self) -> dict[str, int]:
        """Count what is open."""
        found = EndpointCase.inUse(self)
        found["readers"], found["writers"] = len(reactor.getReaders()), len(reactor.getWriters())
        found["threads"] = threading.active_count()
        return found

    async def leftAfter(self, before: dict[str, int]) -> dict[str, int]:
        """
        Count what is open in addition, after waiting for some seconds at most until that is nothing.

        What was open before and is not any more, such as the end of a peer, is forgotten.
        """
        deadline = reactor.seconds() + _SETTLE_SECONDS
        while True:
            found = self.left()
            left = {name: count - before[name] for name, count in found.items() if count > before[name]}
            if not left or reactor.seconds() >= deadline:
                before.update(found)
                return left
            if self.mayCollect:
                gc.collect()
            await deferLater(reactor, 0.002)

    async def settled(self) -> dict[str, int]:
        """Count what is open when peers have noticed the end: when it does not change any more."""
        found: dict[str, int] = {}
        while (before := found) != (found := self.left()):
            await deferLater(reactor, _PAUSE_SECONDS)
        return before

    async def check(self: Any, least: int) -> None:
        """
        Fail each call once, with each error number.

        A failure must not affect the next attempt: that gets to the next call, and the last one succeeds.

        @param least: least number of calls.
        """
        for code in self.codes:
            calls = FailingCalls(self.patch, lambda name: OSError(code, os.strerror(code)))  # noqa: B023
            for owner, name in self.calls:
                calls.watch(owner, name, _OTHER_ERRORS.get(owner))
            calls.begin(0)
            for _ in range(2):  # the first one imports modules, and starts threads of the reactor
                await self.use()
            gc.collect()
            before, number, isReached = await self.settled(), 0, True
            gc.freeze()  # so that each collection takes little time
            self.addCleanup(gc.unfreeze)
            while isReached:
                number += 1
                calls.begin(number)
                outcome = _DONE
                try:
                    await self.use()
                except self.expected as error:
                    outcome = repr(error)
                isReached = calls.count >= number
                what = f"{errno.errorcode[code]} in call {number}: {calls.failed}: {outcome}"
                calls.begin(0)
                self.assertEqual(await self.leftAfter(before), {}, what)
                self.assertLessEqual(len(self.flushLoggedErrors()), self.mostLogged, what)
            gc.unfreeze()
            self.assertEqual(outcome, _DONE, "without a failure")
            self.assertGreater(number, least)


__all__ = ["CODES", "OpeningContract"]
