"""The servers of C{txrdma ping} and C{txrdma sysstat}."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.commands.common.session import opened
from txrdma.error import DeviceUnavailable
from txrdma.mad.portwatch import PortEvent, PortLost
from txrdma.mad.server import MADServer
from txrdma.mad.vendor import TextHandler


async def served(
    reactor: Any, options: Any, serve: Callable[[MADServer], tuple[TextHandler, Callable[[], None]]]
) -> None:
    """
    Answer requests until the reactor stops, for example by Ctrl-C; then print the number of answers.

    @raise DeviceUnavailable: the port is lost.
    """
    with opened(reactor, options) as session:
        handler, end = serve(MADServer(session.agent))
        qpn = getattr(session.agent.port, "qpn", 1)
        queuePair = f", dqpn {qpn}" if qpn != 1 else ""
        text = f"serving at {session.agent.port.name}, LID {session.endPort.lid}{queuePair}"
        print(text, file=sys.stderr, flush=True)
        ended = stopped(reactor)

        def changed(event: PortEvent) -> None:
            if isinstance(event, PortLost) and not ended.called:
                ended.errback(DeviceUnavailable(event.reason))

        session.agent.watch(changed, isPolled=False)
        await ended
        end()
        print(f"answered {handler.answered} requests", file=sys.stderr)


def stopped(reactor: Any) -> Deferred[None]:
    """Return a Deferred that fires when the reactor is about to stop."""
    done: Deferred[None] = Deferred()

    def stop() -> None:
        if not done.called:
            done.callback(None)

    reactor.addSystemEventTrigger("before", "shutdown", stop)
    return done
