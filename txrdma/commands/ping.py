"""C{txrdma ping}: checks whether a host answers management datagrams, and measures round-trip times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.serving import served, stopped
from txrdma.commands.common.session import FabricOptions, opened, Session, TARGETS
from txrdma.commands.common.values import count, seconds
from txrdma.iba.path import IBPath
from txrdma.kit.strings import printable
from txrdma.mad.errors import MADFailure
from txrdma.mad.vendor import OpenIBPing, servePing


class CommandOptions(FabricOptions):
    """Options of C{txrdma ping}: the target, and the number and interval of requests."""

    synopsis = "[options] TARGET"
    longdesc = (
        "Check whether a host answers datagrams of the vendor class of infiniband-diags' ibping; "
        "interoperates with its servers and clients. "
        + TARGETS
        + " The other end is txrdma ping --server, or ibping -S; in ibsim that needs a port as "
        "ibsim:NODE:sm=yes. The exit status is 1 if an answer is missing."
    )
    optFlags = [
        ["server", "S", "Run as the server, until Ctrl-C."],
        ["flood", "f", "Send the next request as soon as an answer arrives."],
    ]
    optParameters = [
        ["count", "c", 0, "Number of requests. [default: until Ctrl-C]", count],
        ["interval", "i", 1.0, "Seconds between requests.", seconds],
    ]

    def parseArgs(self, target: str = "") -> None:
        self["target"] = target

    def postOptions(self) -> None:
        if bool(self["target"]) == bool(self["server"]):
            raise usage.UsageError("expected TARGET, or --server")


@dataclass(slots=True)
class Pings:
    """
    The result of pinging a host.

    @ivar times: round-trip time of each answer in seconds.
    @ivar names: name of the host in each answer.
    """

    sent: int = 0
    times: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def toDict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        times = self.times
        return {
            "name": self.names[-1] if self.names else None,
            "sent": self.sent,
            "received": len(times),
            "seconds": self.seconds,
            "minimumSeconds": min(times) if times else None,
            "averageSeconds": sum(times) / len(times) if times else None,
            "maximumSeconds": max(times) if times else None,
        }

    def text(self, target: str) -> str:
        """Return a summary like that of C{ping}; without requests or answers, it has no loss or times."""
        times, name = self.times, self.names[-1] if self.names else target
        lost = f", {100 * (self.sent - len(times)) / self.sent:.6g}% packet loss" if self.sent else ""
        text = (
            f"\n--- {name} ({target}) ping statistics ---\n"
            f"{self.sent} packets transmitted, {len(times)} received{lost}, time {self.seconds * 1e3:.0f} ms"
        )
        if not times:
            return text
        spread = "/".join(f"{value * 1e3:.3f}" for value in (min(times), sum(times) / len(times), max(times)))
        return f"{text}\nrtt min/avg/max = {spread} ms"


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma ping} as client or server."""
    if options["server"]:
        await served(reactor, options, servePing)
        return
    with opened(reactor, options) as session:
        path = await session.toServices(options["target"])
        pings = await _pinged(session, path)
    if options["json"]:
        printJSON(pings.toDict())
    else:
        print(pings.text(options["target"]))
    if len(pings.times) < pings.sent or not pings.sent:
        raise SystemExit(1)


async def _pinged(session: Session, path: IBPath) -> Pings:
    """Ping until Ctrl-C or the requested number of pings."""
    reactor = session.reactor
    pings = Pings()
    begun = reactor.seconds()
    asking = Deferred.fromCoroutine(_ask(session, path, pings))
    stopped(reactor).addCallback(lambda _: asking.cancel())
    try:
        await asking
    except CancelledError:
        pass
    pings.seconds = reactor.seconds() - begun
    return pings


async def _ask(session: Session, path: IBPath, pings: Pings) -> None:
    reactor, options = session.reactor, session.options
    while not options["count"] or pings.sent < options["count"]:
        if pings.sent and not options["flood"]:
            await deferLater(reactor, options["interval"])
        begun = reactor.seconds()
        pings.sent += 1
        try:
            answer = await session.agent.VendGet(OpenIBPing, path, retries=0)
        except MADFailure as error:
            if not options["json"]:
                print(f"{error} ({options['target']})", flush=True)
            continue
        except CancelledError:
            pings.sent -= 1  # interrupted before its answer or timeout
            raise
        pings.times.append(reactor.seconds() - begun)
        name = printable(answer.text)
        pings.names.append(name)
        if not (options["json"] or options["flood"]):
            time = f"{pings.times[-1] * 1e3:.3f} ms"
            print(f"Pong from {name} ({options['target']}): time {time}", flush=True)
