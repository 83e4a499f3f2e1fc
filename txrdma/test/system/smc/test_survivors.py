"""
A process whose peer ends with two hundred open connections: what remains of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed, serving

CONNECTIONS = 200

SERVER = """
import os, signal, sys
from twisted.internet import reactor
from twisted.internet.protocol import Protocol
from txrdma.test.support.processes import serve

ENDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "stop": reactor.stop,
}

class Echo(Protocol):
    def dataReceived(self, data):
        if b"!" in data and reactor.running:
            ENDS[sys.argv[2]]()
        self.transport.write(data)

serve(Echo)
"""

SURVIVOR = """
import json, sys
text, moment, kind, log = sys.argv[1:]
if kind == "txrdma":
    from txrdma.verbs.polling import install
    install()
from twisted.internet import reactor, task
from twisted.internet.defer import DeferredList
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.python import log as logging
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group import link

logging.startLogging(open(log, "w"), setStdout=False)
links, made, lost = [], [], []

def make(self, *arguments, real=link.Link.__init__):
    links.append(self)
    real(self, *arguments)

link.Link.__init__ = make

class Client(Protocol):
    def connectionMade(self):
        made.append(self)
        self.transport.write(b"x" * 1000)
        if moment == "connecting" and len(made) == COUNT // 2:
            self.transport.write(b"!")

    def dataReceived(self, data):
        if moment != "quiet":
            self.transport.write(data)

    def connectionLost(self, reason):
        lost.append(self)

async def main(reactor):
    endpoint = clientFromString(reactor, text)
    connecting = [endpoint.connect(Factory.forProtocol(Client)) for _ in range(COUNT)]
    results = await DeferredList(connecting, consumeErrors=True)
    if moment == "flood":
        for each in made:
            each.transport.write(b"y" * 500_000)
    if moment != "connecting":
        made[0].transport.write(b"!")
    internal = reactor._internalReaders

    def remaining():
        alive = [repr(each) for each in links if not each.isOver or each.scheduler.isBusy]
        calls = reactor.getDelayedCalls()
        return alive, [repr(each) for each in (*reactor.getReaders(), *calls) if each not in internal]

    until = reactor.seconds() + 100
    while (len(lost) < len(made) or any(remaining())) and reactor.seconds() < until:
        await task.deferLater(reactor, 0.02)
        if len(lost) == len(made):
            reactorUse(reactor).hold().release()  # as the next connection: it resumes link groups
    alive, left = remaining()
    print(json.dumps({
        "made": len(made),
        "failed": sum(not well for well, _ in results),
        "lost": len(lost),
        "alive": alive,
        "left": left,
    }))

task.react(main)
""".replace("COUNT", str(CONNECTIONS))


class SurvivorTests(SynchronousTestCase):
    """Both processes are real; the survivor uses epoll or the polling reactor."""

    slowBecause = "Each test starts a server and a survivor, with many connections between them."
    timeout = 120

    def check(self, end: str, when: str, kind: str = "default", keys: str = "") -> None:
        """Assert that all connections are lost, nothing remains, and the log has no error."""
        log = Path(self.mktemp()).absolute()
        with serving(SERVER, f"smc:127.0.0.1:0:backlog=500{keys}", end) as (_, port):
            survivor = printed(SURVIVOR, f"smc:127.0.0.1:{port}{keys}", when, kind, str(log))
        self.assertEqual(survivor.stderr, "")
        reported: dict[str, Any] = json.loads(survivor.stdout)
        self.assertEqual(reported["made"] + reported["failed"], CONNECTIONS)
        self.assertEqual((reported["lost"], reported["alive"], reported["left"]), (reported["made"], [], []))
        for sign in ("Traceback", "Error"):
            self.assertNotIn(sign, log.read_text())

    def test_peerKilledWithQueuedBytes(self) -> None:
        self.check("kill", "flood")

    def test_peerExitsWhileConnecting(self) -> None:
        self.check("exit", "connecting")

    def test_peerStopsWhileConnectionsAreIdle(self) -> None:
        self.check("stop", "quiet")

    def test_peerKilledBesidePollingReactor(self) -> None:
        for end, when in (("kill", "flood"), ("exit", "connecting")):
            self.check(end, when, "txrdma")

    def test_peerKilledOverUDP(self) -> None:
        self.check("kill", "flood", keys=r":device=soft\:route\=rocev2")
