"""
A player: a process that runs one end of a conversation, and reports every call of its protocol.

L{play} runs an L{Order}; L{txrdma.testing.streams.forkserver} calls it in processes that it forks.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Any, Final

from zope.interface import implementer

from twisted.logger import (
    formatEvent,
    globalLogBeginner,
    globalLogPublisher,
    ILogObserver,
    LogEvent,
    LogLevel,
    textFileLogObserver,
)

from txrdma.testing.streams import transcript
from txrdma.testing.streams.orders import Order, PROXY
from txrdma.testing.streams.reporting import Reporter
from txrdma.testing.streams.scriptedprotocol import Player
from txrdma.testing.streams.transcript import PROCESS

REACTORS: Final = {
    "select": "twisted.internet.selectreactor",
    "poll": "twisted.internet.pollreactor",
    "epoll": "twisted.internet.epollreactor",
    "asyncio": "twisted.internet.asyncioreactor",
    "txrdma": "txrdma.verbs.polling",
}
"""Modules whose C{install} installs a reactor, by the reactor's name."""

_MOST_TEXT: Final = 200
_STARTING: Final = re.compile(r"starting on (\d+)$")


@implementer(ILogObserver)
class _Errors:
    """Reports logged errors: a stream must not log errors where TCP logs none."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level") in (LogLevel.error, LogLevel.critical):
            self._reporter.report(PROCESS, transcript.LOGGED, formatEvent(event)[:_MOST_TEXT])


def play(order: Order) -> None:
    """Run the process that an order describes; it returns, or ends the process."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    reporter = Reporter(order.runner)
    reporter.report(PROCESS, transcript.HELLO, f"{order.who} {os.getpid()}")
    for module in order.imports:
        import_module(module)
    globalLogPublisher.addObserver(_Errors(reporter))
    _begin = _proxy if order.who == PROXY else _player
    _begin(order, reporter)


def _player(order: Order, reporter: Reporter) -> None:
    import_module(REACTORS[order.reactor]).install()
    from twisted.internet import reactor as theReactor

    reactor: Any = theReactor  # a module, to the type checker
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    player = Player(order, reactor, reporter)
    reactor.callWhenRunning(player.begin)
    reactor.run()
    from txrdma.verbs.completions import runQueueWait  # late: a player over TCP does not use it

    reporter.report(PROCESS, transcript.WAITED, f"{runQueueWait():.3f}")


def _proxy(order: Order, reporter: Reporter) -> None:
    """Run C{twistd smc-proxy} as from a shell, and report the port that it logs."""
    from twisted.scripts.twistd import run

    ports: list[str] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        found = _STARTING.search(formatEvent(event))
        if found and not ports:
            ports.append(found[1])
            reporter.report(PROCESS, transcript.LISTENING, found[1])

    globalLogPublisher.addObserver(observe)
    sys.argv = ["twistd", "--nodaemon", "--pidfile=", f"--reactor={order.reactor}", "smc-proxy"]
    sys.argv += ["--listen", order.listen, "--connect", order.connect]
    run()
