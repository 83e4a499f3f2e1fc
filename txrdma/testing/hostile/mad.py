"""Hostile peers of management: requests to a server, responses to an agent, RMPP transfers of both."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.error import ConnectionDone

from txrdma.iba.path import GMP_QKEY, IBPath
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.interfaces import IMADHandler
from txrdma.mad import agent as agentModule
from txrdma.mad.agent import MADAgent
from txrdma.mad.core import transfers as transfersModule
from txrdma.mad.core.transfers import MOST_ANSWERS, MOST_REQUESTS
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.ports import verbsport as verbsportModule
from txrdma.mad.ports.verbsport import VerbsPort
from txrdma.mad.server import MADServer, MOST_PENDING
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.wiring import UD
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import Host

_LONGEST_TABLE: Final = 20  # records; RMPP needs more segments than C{WINDOW} below
_MOST_ROUNDS: Final = 8  # mutations affect fewer messages than these and their answers
_BYTES_OF_RECORD: Final = 500
_METHODS: Final = (Method.GET, Method.GET_TABLE, Method.GET_MULTI)
_SOME: Final = [GID.fromParts(0xFE80 << 48, GUID.fromInt(number)) for number in range(36)]


@implementer(IMADHandler)
class Tables:
    """Returns as many node records as the LID of the request, or a fixed number of path records."""

    def handle(self, request: MADRequest) -> Sequence[NodeRecord | PathRecord] | NodeRecord:
        payload = request.payload
        if request.header.method == Method.GET:
            return NodeRecord(lid=LID(1))
        if isinstance(payload, NodeRecord):
            return [NodeRecord(lid=LID(1 + number)) for number in range(min(payload.lid, _LONGEST_TABLE))]
        return [PathRecord(dlid=LID(1 + number)) for number in range(_LONGEST_TABLE)]


class Asker(Talker):
    """
    An end that sends requests to its peer; the peer's C{received} is the number of answered bytes.

    @ivar peer: the other end.
    """

    isMade = True
    peer: Asker

    def __init__(self, agent: MADAgent, path: IBPath) -> None:
        self._agent, self._path = agent, path
        self._asked = 0

    def send(self, data: bytes) -> None:
        """Request a table of about this size; every fourth request is a long message itself."""
        self._asked += 1
        agent, path = self._agent, self._path
        if self._asked % 4 == 2:
            question = MultiPathRecord.between(_SOME[:6], _SOME[6:], numbPath=7, reversible=True)
            answer = agent.call("SubnAdmGetMulti", question, path)
        else:
            count = min(_LONGEST_TABLE, 1 + len(data) // _BYTES_OF_RECORD)
            answer = agent.call("SubnAdmGetTable", NodeRecord(lid=LID(count)), path)
        answer.addCallbacks(lambda _: self._answered(len(data)), lambda _: None)

    def _answered(self, size: int) -> None:
        self.peer.received += size

    def close(self) -> None:
        for each in (self, self.peer):
            each.lost = each.lost or ConnectionDone()

    def abort(self) -> None:
        self.close()


class MADScenario(HostileScenario):
    """A simulation with a hostile peer of an agent and its server."""

    channels = (UD,)
    chance = ((agentModule, "urandom"), (memoryModule, "randbits"), (deviceModule, "randbelow"))
    constants = ((verbsportModule, "RECEIVES", 256), (transfersModule, "WINDOW", 4))
    quiet = 300.0

    @classmethod
    def draw(cls, seed: int) -> HostilePlan:
        plan = super().draw(seed)
        return replace(plan, rounds=min(plan.rounds, _MOST_ROUNDS))

    def begin(self) -> None:
        self._agents = {host: self._agentOf(host) for host in self.hosts}
        self._servers = {host: MADServer(agent) for host, agent in self._agents.items()}
        for server in self._servers.values():
            server.handle(ManagementClass.SUBN_ADM, Tables(), _METHODS)

    def _agentOf(self, host: Host) -> MADAgent:
        reactor: Any = host
        return MADAgent(host, VerbsPort(reactor, host.device, isGSI=True, closesDevice=False))

    def connect(self, client: Host, server: Host) -> Pair:
        """Create two ends with which two hosts send requests to each other."""
        here, there = (
            Asker(self._agents[one], self._pathBetween(one, other))
            for one, other in ((client, server), (server, client))
        )
        here.peer, there.peer = there, here
        return Pair(here, there)

    @staticmethod
    def _pathBetween(one: Host, other: Host) -> IBPath:
        return IBPath(
            sgid=GID.fromIP(one.address),
            dgid=GID.fromIP(other.address),
            hopLimit=64,
            dqpn=QPN(1),
            sqpn=QPN(1),
            qkey=GMP_QKEY,
            packetLifeTime=10,
        )

    def judge(self) -> None:
        """Check the limits of the victim's agent and server."""
        agent, server = self._agents[self.victim], self._servers[self.victim]
        transfers = agent._core._transfers
        check(len(server._pending) <= MOST_PENDING, f"{len(server._pending)} requests are pending")
        check(len(transfers._outgoing) <= MOST_ANSWERS, f"{len(transfers._outgoing)} long responses")
        check(len(transfers._requests) <= MOST_REQUESTS, f"{len(transfers._requests)} long requests")

    def end(self) -> None:
        """Check that the victim's and honest host's agents have no state left, and close all agents."""
        for host in (self.victim, self.honest):
            agent = self._agents[host]
            transfers = agent._core._transfers
            left = (len(agent._core._transactions), transfers._incoming, transfers._outgoing)
            check(left == (0, {}, {}), f"{agent!r} still has {left}")
            check(not self._servers[host]._pending, f"{self._servers[host]._pending} are pending")
        self.close()

    def close(self) -> None:
        for host in self.hosts:
            with suppress(Exception):  # the host may have failed
                self._servers[host].stop()
                self._agents[host].close()
