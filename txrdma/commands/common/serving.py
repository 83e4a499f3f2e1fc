"""The servers of C{txrdma ping} and C{txrdma sysstat}."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.commands.common.session import opened
from txrdma.mad.server import MADServer
from txrdma.mad.vendor import TextHandler


async def served(
    reactor: Any, options: Any, serve: Callable[[MADServer], tuple[TextHandler, Callable[[], None]]]
) -> None:
    """Answer requests until the reactor stops, for example by Ctrl-C; then print the number of answers."""
    with opened(reactor, options) as session:
        handler, end = serve(MADServer(session.agent))
        qpn = getattr(session.agent.port, "qpn", 1)
        queuePair = f", dqpn {qpn}" if qpn != 1 else ""
        text = f"serving at {session.agent.port.name}, LID {session.endPort.lid}{queuePair}"
        print(text, file=sys.stderr, flush=True)
        await stopped(reactor)
        end()
        print(f"answered {handler.answered} requests", file=sys.stderr)


def stopped(reactor: Any) -> Deferred[None]:
    """Return a Deferred that fires when the reactor is about to stop."""
    done: Deferred[None] = Deferred()
    reactor.addSystemEventTrigger("before", "shutdown", done.callback, None)
    return done
