"""
Versions of SMC-R on a real reactor: which one two endpoints use, and how they report it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.task import deferLater

from txrdma.commands.connections import connectionsTable
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import linkGroups, useDevice
from txrdma.smc.group.link import Link
from txrdma.smc.terms.offer import Abilities
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import AnswerV2, Diagnosis
from txrdma.smc.wire.llc import AddLink, decode, LLCFlags, LLCType
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.captures import messages
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.protocols import Echo, Recorder
from txrdma.testing.smc.scenario import DEVICE

UDP = r"device=soft\:route\=rocev2"


class VersionTests(EndsTestCase):
    """Each pair of ends uses the highest common version."""

    async def talk(self, server: str, client: str) -> tuple[Any, Any]:
        """Connect, and exchange bytes; return both ends, the client first."""
        listen, connect = f"smc:127.0.0.1:0:{server}", "smc:127.0.0.1:{}:" + client
        one, other = await self.ends(Echo, Recorder, listen, connect)
        one.transport.write(b"over there " * 1000)
        self.assertEqual(await one.receiving(11000), b"over there " * 1000)
        return one, other

    async def check(self, server: str, client: str, version: int, eid: str) -> None:
        """Check two connections in one link group, and the reports of both ends."""
        groups = set()
        for _ in range(2):
            one, other = await self.talk(server, client)
            for end in (one, other):
                reported = end.smc.toDict()
                self.assertEqual(
                    (reported["mode"], reported["version"], reported["eid"]), ("SMC-R", version, eid)
                )
            groups.add(one.smc.linkGroup)
        self.assertEqual(len(groups), 1)
        one.transport.loseConnection()
        for end in (one, other):
            await end.lost
            end.reason.trap(ConnectionDone)

    async def test_version2IsUsedWithCommonUEID(self) -> None:
        await self.check(f"{UDP}:ueid=B,EXAMPLE.COM", f"{UDP}:ueid=EXAMPLE.COM,A", 2, "EXAMPLE.COM")
        await self.check(f"{UDP}:ueid=A:version=2", f"{UDP}:ueid=A", 2, "A")

    async def test_version1(self) -> None:
        """Without a common UEID, or if one end supports only version 1, version 1 is used."""
        for server, client in (("", ":ueid=A"), (":ueid=A", ""), (":ueid=A", ":ueid=B"),
                               (":version=1", ":ueid=A"), (":ueid=A", ":version=1")):  # fmt: skip
            await self.check(UDP + server, UDP + client, 1, "")

    async def test_sharedMemoryUsesVersion1(self) -> None:
        await self.check("ueid=A", "ueid=A", 1, "")

    async def test_clientWithoutVersion2ReportsReason(self) -> None:
        one, other = await self.talk("version=2:ueid=A", "version=2:ueid=A")
        self.assertEqual((one.smc.mode, one.smc.fallbackReason), ("TCP", Diagnosis.NOSMCRDEV))
        self.assertEqual(other.smc.peerDiagnosis, Diagnosis.NOSMCRDEV)

    async def test_portWithAddressOfTCPConnectionIsUsed(self) -> None:
        device = r"device=soft\:127.0.0.3,127.0.0.1\:route\=rocev2"
        for more, version in ((":ueid=A", 2), ("", 1)):
            one, other = await self.talk(device + more, UDP + more)
            self.assertEqual((one.smc.mode, other.smc.version), ("SMC-R", version))
        links = linkGroups(reactor, "soft:127.0.0.3,127.0.0.1:route=rocev2").links()
        self.assertEqual({(link.port.candidate.port, str(link.port.candidate.gid)) for link in links},
                         {(2, "::ffff:127.0.0.1")})  # fmt: skip
        self.assertEqual(len(links), 2)  # one for each version

    async def test_portsThatAreDownAreTriedLast(self) -> None:
        device = openSoftDevice(reactor, ("127.0.0.3", "127.0.0.1"), route="rocev2")
        groups = useDevice(reactor, "two ports", device)
        self.assertEqual([one.port for one in groups.candidates], [1, 2])
        owners = {one.peerID for one in groups.candidates}
        self.assertEqual(len(owners), 1)  # it is one process
        for isEnabled, expected in ((False, [2, 1]), (True, [1, 2])):
            device.setPortEnabled(1, isEnabled)
            await deferLater(reactor, 0)
            self.assertEqual([one.port for one in groups.candidates], expected)
            self.assertEqual({one.peerID for one in groups.candidates}, owners)

    async def test_connectionsCommandShowsVersionAndEnterprise(self) -> None:
        for options, isShown in ((f"{UDP}:ueid=EXAMPLE.COM", True), ("version=1", False)):
            one, _ = await self.talk(options, options)
            table = connectionsTable([{"pid": 1, "command": ["python", "x"], **one.smc.toDict()}])
            (mode,) = table.columns[2].cells
            self.assertEqual("version 2 by EXAMPLE.COM" in str(mode).splitlines(), isShown)
            self.assertEqual("version" in str(mode), isShown)


class LinkTests(RaceTestCase):
    def connected(self) -> tuple[Listener, Listener]:
        """Return both ends of a connection with version 2, the client first."""
        here, there = self.pair(ueids=("A",))
        self.assertEqual(there.transport.smc.version, 2)
        return here, there

    def test_confirmRepeatsEIDOfAccept(self) -> None:
        here, there = self.connected()
        (clientLink,), (serverGroup,) = (
            linkGroups(host, DEVICE).links() for host in (self.client, self.server)
        )
        pools = [linkGroups(host, DEVICE).groups()[0].pool for host in (self.client, self.server)]
        (own,), (other,) = pools
        accept = serverGroup.accept(Element(other, 1), 5, False, b"")
        agreement = replace(clientLink.agreement, eid=b"B".ljust(32))
        confirm = clientLink.confirm(Element(own, 1), 6, accept, agreement, b"")
        self.assertEqual((confirm.v2, confirm.token), (AnswerV2(b"B".ljust(32)), 6))
        self.assertEqual(
            clientLink.confirm(Element(own, 1), 6, accept, clientLink.agreement, b"").v2, accept.v2
        )

    def test_messageLongerThanVersion1IsRead(self) -> None:
        here, there = self.connected()
        (clientLink,) = linkGroups(self.client, DEVICE).links()
        (serverGroup,) = linkGroups(self.server, DEVICE).groups()
        received: list[bytes] = []
        forward = serverGroup.core.received

        def record(raw: bytes, now: float, *link: Any) -> None:
            received.append(raw)
            forward(raw, now, *link)

        self.patch(serverGroup.core, "received", record)
        long = next(raw for _, raw in messages("smc-first") if decode(raw).type is LLCType.ADD_LINK)
        self.assertEqual(len(long), 88)
        request = SendRequest(-1, Operation.SEND, inline=(long,), signaled=False, solicited=True)
        serverGroup.links[0]._queuePair.postSend([request])
        self.until(lambda: received)
        answer = decode(received[0])
        self.assertEqual((answer.type, bool(answer.header.flags & LLCFlags.REJECT)), (LLCType.ADD_LINK, True))
        here.transport.write(b"hello")
        self.until(lambda: there.received == b"hello")
        self.assertTrue(clientLink.isActive and serverGroup.links[0].isActive)

    def offers(self, release: int = 1, **keys: Any) -> set[tuple[bool, bool]]:
        """
        Connect hosts that have one port each, and support this release of version 2.

        @return: for each ADD LINK, whether it names a usable link, which has an MTU, and whether it is a
            rejection.
        """
        output: set[tuple[bool, bool]] = set()
        control, abilities = LinkGroup.control, Options.abilities

        def record(group: LinkGroup, link: Link, raw: bytes) -> None:
            message = decode(raw)
            if isinstance(message.body, AddLink):
                output.add((bool(message.body.mtu), bool(message.header.flags & LLCFlags.REJECT)))
            control(group, link, raw)

        def released(options: Options, ports: int) -> Abilities:
            return replace(abilities(options, ports), release=release)

        patches = [self.patch(LinkGroup, "control", record), self.patch(Options, "abilities", released)]
        here, there, _ = self.connect(Listener(lambda listener: listener.transport.write(b"hello")), **keys)
        self.until(lambda: there.received)
        self.wait(0.1)
        for patched in patches:
            patched.restore()
        self.assertEqual((here.mode, there.received), ("SMC-R", b"hello"))
        [group] = [one for one in linkGroups(self.server, DEVICE).groups() if one.flows]
        agreed = group.agreement.version, group.agreement.release
        self.assertEqual(agreed, (1, 0) if keys["versions"] == (1,) else (2, release))
        for end in (here, there):
            end.transport.loseConnection()
        self.until(lambda: here.reason and there.reason)
        return output

    def test_addLink(self) -> None:
        """
        A server with one port offers a link without an MTU, which is rejected, to clients of versions 1 and
        2.0: those of Linux wait for it. If both ends allow more links, it offers a usable one.
        """
        without, usable = {(False, False), (False, True)}, {(True, False), (True, True)}
        for version, release, links, expected in (
            *((1, 1, 1, without), (2, 0, 1, without), (2, 1, 1, set())),
            *((2, 0, 2, usable), (2, 1, 2, usable)),
        ):
            ueids = (f"U{release}{links}",)  # each with a link group of its own
            found = self.offers(release, versions=(version,), links=links, ueids=ueids)
            self.assertEqual(found, expected, (version, release, links))
