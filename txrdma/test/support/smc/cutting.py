"""
Failover between two processes in separate network namespaces, whose two RoCE networks are cut under load.

C{python -m txrdma.test.support.smc.cutting every|down|silent|broken} must be run in a new network namespace,
which becomes the server's. It prints its measurements as JSON. TCP uses a third network, which is never cut.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.stdio import StandardIO
from twisted.internet.task import react
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from txrdma.smc.group.groups import linkGroups
from txrdma.test.support.namespaces import TwoHosts

NETWORKS = ("10.77.0", "10.77.1", "10.77.2")
KEEPALIVE = {"time": 1, "intvl": 1, "probes": 3}
"""
TCP keepalive of both namespaces (see tcp(7)), from which txrdma also derives the timeouts of RoCE links.
"""

PIECE = 32 << 10
STEP = 2 << 20
"""Bytes that each end must receive before the test continues."""


@implementer(IHalfCloseableProtocol)
class Pump(Protocol):
    """A protocol that writes random data until it is stopped, and hashes what it sends and receives."""

    transport: Any

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._isStopped = False
        self.sent, self.received = sha256(), sha256()
        self.count = {"sent": 0, "received": 0}
        self.ended: Deferred[str] = Deferred()

    def connectionMade(self) -> None:
        self.mode = self.transport.smc.mode
        self.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        if not self._isStopped:
            piece = self._random.randbytes(self._random.randrange(1, PIECE))
            self.sent.update(piece)
            self.count["sent"] += len(piece)
            self.transport.write(piece)

    def stopProducing(self) -> None:
        self._isStopped = True

    def dataReceived(self, data: bytes) -> None:
        self.received.update(data)
        self.count["received"] += len(data)

    def stop(self) -> None:
        """Stop writing; the connection ends when the peer stops as well."""
        self._isStopped = True
        self.transport.unregisterProducer()
        self.transport.loseWriteConnection()

    def readConnectionLost(self) -> None:
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        pass

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._isStopped = True
        self.ended.callback(reason.value.__class__.__name__)

    def reported(self) -> dict[str, Any]:
        """Return counts and hashes of the bytes in both directions, and the connection's mode."""
        return {
            **self.count,
            "sentHash": self.sent.hexdigest(),
            "receivedHash": self.received.hexdigest(),
            "mode": self.mode,
        }


class Commands(LineOnlyReceiver):
    """Processes commands from standard input: C{stop}, C{end}, or any other line for the current state."""

    delimiter = b"\n"

    def __init__(self, reactor: Any, device: str, pumps: list[Pump]) -> None:
        self._reactor, self._device, self._pumps = reactor, device, pumps

    def lineReceived(self, line: bytes) -> None:
        if not self._pumps:
            self._printReport({"received": 0, "links": 0})
            return
        pump = self._pumps[-1]
        if line == b"stop":
            pump.stop()
        elif line == b"end":
            pump.ended.addCallback(lambda reason: self._printReport({**pump.reported(), "reason": reason}))
        else:
            groups = linkGroups(self._reactor, self._device).groups()
            links = [sum(link.isActive for link in group.links) for group in groups]
            self._printReport({**pump.count, "links": links[0] if links else 0})

    def _printReport(self, reported: object) -> None:
        print(json.dumps(reported), flush=True)


def device(number: int) -> str:
    """Return the device string of an end: 1 is the server, 2 the client."""
    return f"soft:{NETWORKS[0]}.{number},{NETWORKS[1]}.{number}:route=rocev2"


def run(role: str, port: str) -> None:
    """Run one of the two processes, C{server} or C{client}; it ends only when it is killed."""

    async def main(reactor: Any) -> None:
        number = 1 if role == "server" else 2
        quoted = device(number).replace(":", r"\:").replace("=", r"\=")
        keys = f"device={quoted}:peer=smc"
        pumps: list[Pump] = []
        if role == "server":
            factory = Factory.forProtocol(lambda: pumps.append(Pump(f"s{len(pumps)}")) or pumps[-1])  # type: ignore[func-returns-value]  # append is falsy
            listening = await serverFromString(reactor, f"smc:0:interface={NETWORKS[2]}.1:{keys}").listen(
                factory
            )
            print(json.dumps(listening.getHost().port), flush=True)
        else:
            endpoint = clientFromString(reactor, f"smc:{NETWORKS[2]}.1:{port}:fallback=no:{keys}")
            pumps.append(Pump("c0"))
            await connectProtocol(endpoint, pumps[0])
        StandardIO(Commands(reactor, device(number), pumps))
        await Deferred()

    react(main)


class Process:
    """One of the two processes, as the controlling process sees it."""

    def __init__(self, role: str, port: str, *before: str) -> None:
        command = [*before, sys.executable, "-m", __spec__.name, role, port]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def sendLine(self, line: str) -> None:
        """Write a line to the standard input of the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Read a line of JSON from the standard output of the process."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, line: str = "?") -> Any:
        """Send a command, and return the answer."""
        self.sendLine(line)
        return self.answer()


class Play:
    """The two processes and their networks; C{seen} collects the measurements."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.hosts = TwoHosts(NETWORKS)
        for side in (0, 1):
            for name, value in KEEPALIVE.items():
                path = f"/proc/sys/net/ipv4/tcp_keepalive_{name}"
                self.hosts.run(side, "sh", "-c", f"echo {value} > {path}")
        self.server = Process("server", "0")
        port = str(self.server.answer())
        self.client = Process("client", port, *self.hosts.second)
        self.ends = (self.server, self.client)

    def until(self, what: str, isSo: Callable[[list[Any]], bool]) -> None:
        """Wait until the reports of both ends satisfy a condition, and record the duration as C{what}."""
        begun = time.monotonic()
        while True:
            reported = [end.ask() for end in self.ends]
            if isSo(reported):
                self.seen[what] = round(time.monotonic() - begun, 2)
                return
            if time.monotonic() - begun > 60:
                raise SystemExit(f"{what}: {reported}")
            time.sleep(0.05)

    def flows(self, what: str, links: int) -> None:
        """Wait until both ends have received more data and have this number of active links."""
        before = [end.ask()["received"] for end in self.ends]
        self.until(
            what,
            lambda reported: all(
                one["received"] > was + STEP and one["links"] == links
                for one, was in zip(reported, before, strict=True)
            ),
        )

    def play(self, down: tuple[int, ...], silent: tuple[int, ...]) -> None:
        """Take some networks down and up, then silently cut and restore some."""
        self.flows("begun", 2)
        for number in down:
            self.hosts.down(number, "down")
            self.flows(f"down {number}", 1)
            self.hosts.down(number, "up")
            self.flows(f"up {number}", 2)
        for number in silent:
            self.hosts.silence(number, "add")
            self.flows(f"silent {number}", 1)
            self.hosts.silence(number, "del")
            self.flows(f"received {number}", 2)

    def whole(self) -> None:
        """Stop both ends, and record their counts and hashes."""
        for end in self.ends:
            end.sendLine("stop")
        self.seen["ends"] = [end.ask("end") for end in self.ends]

    def broken(self) -> None:
        """Cut both networks, and record how and after which time the connection ends."""
        begun = time.monotonic()
        for number in (0, 1):
            self.hosts.silence(number, "add")
        self.seen["ends"] = [end.ask("end") for end in self.ends]
        self.seen["both"] = round(time.monotonic() - begun, 2)

    def close(self) -> None:
        """Kill all processes."""
        for process in (self.server.process, self.client.process):
            process.kill()
            process.wait()
        self.hosts.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(*sys.argv[1:3])
    else:
        playing = Play()
        try:
            match sys.argv[1]:
                case "every":
                    playing.play((0, 1), (1, 0))
                    playing.whole()
                case "down":
                    playing.play((0,), ())
                    playing.whole()
                case "silent":
                    playing.play((), (1,))
                    playing.whole()
                case "broken":
                    playing.play((), ())
                    playing.broken()
            print(json.dumps(playing.seen))
        finally:
            playing.close()
