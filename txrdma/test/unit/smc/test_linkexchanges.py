"""
L{txrdma.smc.group._linkexchanges}: groups with several links, compared with a recorded kernel and simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.smc.group._groupstate import (
    Event,
    GroupEnded,
    LinkAdded,
    LinkConfirmed,
    LinkEnd,
    LinkLife,
    LinkLost,
    LinkMade,
    LinkRequested,
    RKeyConfirmed,
    Token,
)
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.terms.offer import Role
from txrdma.smc.wire import llc
from txrdma.test.support.captures import messages


class RecordedTests(SynchronousTestCase):
    """A group replaces the recorded kernel's, as client or server: two links, of which one fails."""

    def setUp(self) -> None:
        output = [(one.source, raw) for one, raw in messages("smc-two-links") if raw[0] != 0xFE]
        self.server = [raw for source, raw in output if source in ("10.77.0.2", "10.77.0.4")]
        self.client = [raw for source, raw in output if source in ("10.77.0.1", "10.77.0.3")]
        self.core = LinkGroupProtocol(Role.CLIENT, self.end(self.client[0]), version=2)

    def end(self, raw: bytes) -> LinkEnd:
        """Return the end of a link that a message names."""
        body = llc.decode(raw).body
        assert isinstance(body, (llc.ConfirmLink, llc.AddLink))
        return LinkEnd(body.mac, body.gid, body.qpn)

    def begin(self, role: Role, ours: list[bytes], remoteKeys: list[bytes]) -> None:
        """Perform the first contact."""
        self.core = LinkGroupProtocol(role, self.end(ours[0]), version=2, maxLinks=2)
        isServer = role is Role.SERVER
        buffers = [(RKey(0x358), 0xFF29218085840000), (RKey(0x392), 0xFF29218086000000)]
        own, other = buffers if isServer else buffers[::-1]
        self.core.agreed(*own)
        self.core.learn(*other)
        self.core.confirm(0.0, self.end(remoteKeys[0]))
        self.core.received(remoteKeys[0], 0.0)
        [(_, raw)] = self.core.outgoing()
        one, kernel = llc.decode(raw), llc.decode(ours[0])
        assert isinstance(one.body, llc.ConfirmLink) and isinstance(kernel.body, llc.ConfirmLink)
        self.assertEqual((one.header, one.body.maxLinks), (kernel.header, kernel.body.maxLinks))

    def offer(self, raw: bytes, name: int, token: Token) -> LinkLife:
        """Offer the kernel's end of the second link."""
        body = llc.decode(raw).body
        assert isinstance(body, llc.AddLink)
        link = self.core.offer(self.end(raw), body.mtu, body.psn, {RKey(name): token}, 0.0)
        assert link is not None
        return link

    def test_clientAnswersAsKernel(self) -> None:
        core, server, client = self.core, self.server, self.client
        self.begin(Role.CLIENT, client, server)
        core = self.core
        core.received(server[1], 0.0)
        self.assertEqual(
            core.events(), [LinkConfirmed(), LinkRequested(cast(llc.AddLink, llc.decode(server[1]).body))]
        )
        link = self.offer(client[1], 0x392, Token(RKey(0x36D), 0xFF29218086000000))
        self.assertEqual(core.outgoing(), [(core.first, client[1])])
        [made] = core.events()
        self.assertEqual(made, LinkMade(link, cast(llc.AddLink, llc.decode(server[1]).body)))
        core.made(link, 0.0)
        core.received(server[2], 0.0, link)
        [(by, raw)] = core.outgoing()
        self.assertEqual((by, raw[:30]), (link, client[2][:30]))
        self.assertEqual(core.events(), [LinkAdded(link)])
        core.received(server[3], 0.0, link)
        self.assertEqual(core.outgoing(), [(link, client[3])])
        self.assertEqual(core.target(RKey(0x420), 0xFF29218087830000, 65536, 1, link), 0xFF29218087830000)
        self.assertEqual(core.elsewhere(core.first, link, RKey(0x358)), (
            Token(RKey(0x358), 0xFF29218085840000), Token(RKey(0x3E2), 0xFF29218085840000)
        ))  # fmt: skip
        core.linkDown(1.0, "v0 is down")
        self.assertEqual(core.events(), [LinkLost(core.first, "v0 is down")])
        asked, answered = (raw for raw in client if llc.decode(raw).type is llc.LLCType.DELETE_LINK)
        self.assertEqual(core.outgoing(), [(link, asked)])
        [request] = [raw for raw in server if llc.decode(raw).type is llc.LLCType.DELETE_LINK]
        core.received(request, 1.0, link)
        self.assertEqual(core.outgoing(), [(link, answered)])
        again = [raw for raw in server if llc.decode(raw).type is llc.LLCType.ADD_LINK][1]
        core.received(again, 1.0, link)
        self.assertEqual(core.events(), [LinkRequested(cast(llc.AddLink, llc.decode(again).body))])
        core.decline(1.0)
        rejected = [raw for raw in client if llc.decode(raw).type is llc.LLCType.ADD_LINK][1]
        self.assertEqual(core.outgoing(), [(link, rejected)])

    def test_serverAsksAsKernel(self) -> None:
        server, client = self.server, self.client
        self.begin(Role.SERVER, server, client)
        core = self.core
        self.assertEqual(core.events(), [LinkConfirmed(), LinkRequested(None)])
        link = self.offer(server[1], 0x358, Token(RKey(0x3E2), 0xFF29218085840000))
        self.assertEqual(core.outgoing(), [(core.first, server[1])])
        core.received(client[1], 0.0)
        self.assertEqual(core.events(), [LinkMade(link, cast(llc.AddLink, llc.decode(client[1]).body))])
        core.made(link, 0.0)
        [(by, raw)] = core.outgoing()
        self.assertEqual((by, raw[:30]), (link, server[2][:30]))
        core.received(client[2], 0.0, link)
        self.assertEqual(core.events(), [LinkAdded(link)])
        reported = next(raw for raw in client[3:] if not raw[3] & 0x80)
        core.received(reported, 0.0, link)
        self.assertEqual([raw for _, raw in core.outgoing()], [server[4]])
        asked, answered = (raw for raw in client if llc.decode(raw).type is llc.LLCType.DELETE_LINK)
        core.received(asked, 1.0, link)
        self.assertEqual([type(each) for each in core.events()], [LinkLost])
        [request] = [raw for raw in server if llc.decode(raw).type is llc.LLCType.DELETE_LINK]
        self.assertEqual(core.outgoing(), [(link, request)])
        core.received(answered, 1.0, link)
        core.grow(self.end(server[1]), 1.0)
        self.assertEqual(core.events(), [LinkRequested(None)])
        again = [raw for raw in server if llc.decode(raw).type is llc.LLCType.ADD_LINK][1]
        body = llc.decode(again).body
        assert isinstance(body, llc.AddLink)
        self.assertEqual(getattr(self.offer(again, 0x358, Token(RKey(0x794), 0)), "number", 0), body.link)


class End:
    """One end of a simulated group, which makes links from a number of ports."""

    def __init__(self, role: Role, ports: int, links: int, version: int) -> None:
        self.role = role
        self.ports = [
            LinkEnd(MACAddress(bytes((n,)) * 6), GID(bytes((n,)) * 16), QPN(n)) for n in range(ports)
        ]
        self.core = LinkGroupProtocol(role, self.ports[0], maxLinks=links, version=version)
        self.buffers: dict[RKey, None] = {}
        self.made: list[LinkLife] = [self.core.first]
        self.events: list[Event] = []
        self.keys = 100 if role is Role.SERVER else 500

    def tokens(self) -> dict[RKey, Token]:
        """Return keys of all buffers for a new link."""
        self.keys += 1000
        return {name: Token(RKey(name + self.keys), name) for name in self.buffers}

    def hold(self) -> RKey:
        """Add a local buffer, and return its name."""
        self.keys += 1
        name = RKey(self.keys)
        self.buffers[name] = None
        return name

    def grow(self, now: float) -> None:
        """Announce another buffer on all links."""
        name = self.hold()
        links = [link for link in self.made if link.state != "gone"]
        self.core.registered(name, {link: Token(RKey(name + 9000 * n), name) for n, link in enumerate(links)})
        self.core.confirmRKey(name, name, now)

    def turn(self, now: float) -> None:
        """Process the core's events until none is left."""
        while events := self.core.events():
            for event in events:
                self.act(event, now)

    def act(self, event: Event, now: float) -> None:
        """Process one event of the core."""
        self.events.append(event)
        if isinstance(event, LinkRequested):
            used = {link.local for link in self.made if link.state != "gone"}
            free = [port for port in self.ports if port not in used]
            link = self.core.offer(free[0], 1, 1, self.tokens(), now) if free else None
            if link is None:
                self.core.decline(now)
            else:
                self.made.append(link)
        elif isinstance(event, LinkMade):
            self.core.made(event.link, now)


class TwoEnds(list[End]):
    """
    A server's and a client's group, connected.

    @ivar output: the messages of both ends, with the time, the sender's role and the link.
    @ivar silent: numbers of links that deliver nothing.
    """

    def __init__(self, ports: tuple[int, int] = (2, 2), links: int = 2, version: int = 2) -> None:
        super().__init__(End(role, count, links, version) for role, count in zip(Role, ports, strict=True))
        self.output: list[tuple[float, Role, LinkLife, llc.LLC]] = []
        self.silent: set[int] = set()

    def both(self) -> Iterator[tuple[End, End]]:
        """Yield each end with its peer."""
        yield from (self, self[::-1])  # type: ignore[misc]  # two ends in each tuple

    def confirm(self) -> None:
        """Perform the first contact, and exchange the keys of all buffers."""
        for end, other in self.both():
            for name in other.buffers:
                other.core.agreed(name, name)
                end.core.learn(name, name)
            end.core.confirm(0.0, other.ports[0])

    def deliver(self, now: float, times: int = 1) -> None:
        """Deliver messages in both directions, except on silent links."""
        for _ in range(times):
            for end, other in self.both():
                end.turn(now)
                for link, raw in end.core.outgoing():
                    self.output.append((now, end.role, link, llc.decode(raw)))
                    there = [each for each in other.made if each.number in (0, link.number)]
                    for each in [each for each in there if each.state != "gone"][:1]:
                        if link.number not in self.silent:
                            other.core.received(raw, now, each)

    def times(self, role: Role, kind: llc.LLCType) -> list[float]:
        """Return the times of an end's messages of a type."""
        return [now for now, sender, _, message in self.output if (sender, message.type) == (role, kind)]

    @property
    def links(self) -> list[int]:
        """The number of links of each end."""
        return [len(end.core.links) for end in self]


def offered(port: LinkEnd, number: int) -> bytes:
    """Return an ADD LINK of version 2."""
    body = llc.AddLink(mac=port.mac, gid=port.gid, qpn=QPN(7), link=number, mtu=1)
    return llc.LLC(
        body.TYPE, llc.LLCHeader(version=2), body, llc.AddLinkExtension(port.gid, True, ())
    ).encode()


class SeedTests(SynchronousTestCase):
    """Two groups whose links fail at any time."""

    def play(self, seed: int) -> None:
        """Assert that working links lose no messages, and that both ends have the same links and keys."""
        random = Random(seed)
        version, links = random.choice((1, 2)), random.choice((2, 2, 3, 8))
        ends = [End(role, random.choice((1, 2, 3, 5)), links, version) for role in Role]
        now = 0.0
        for end, other in (ends, ends[::-1]):
            end.core.confirm(now, other.ports[0])
        wires: list[tuple[End, int, bytes]] = []
        for step in range(400):
            for end, other in (ends, ends[::-1]):
                end.turn(now)
                for link, raw in end.core.outgoing():
                    wires.append((other, link.number, raw))
            if step < 200 and random.random() < 0.05:
                end = random.choice(ends)
                if end.core.state == "active":
                    end.grow(now)
            if step < 200 and random.random() < 0.02:
                number = random.choice(ends[0].made).number
                for end in random.sample(ends, 2):
                    for link in end.made:
                        if link.number == number and link.state != "gone":
                            end.core.linkDown(now, "by the test", link)
                wires = [each for each in wires if each[1] != number]
            if wires:
                place = 0
                end, number, raw = wires.pop(place)
                for link in end.made:
                    if link.number == number and link.state != "gone":
                        end.core.received(raw, now, link)
                        break
                    if link is end.core.first and not link.number:
                        end.core.received(raw, now, link)
                        break
            else:
                now += 0.5
                for end in ends:
                    if (end.core.deadline() or now + 1) <= now:
                        end.core.expired(now)
        states = [end.core.state for end in ends]
        if "ended" in states:
            return  # if all links have failed
        numbers = [sorted(link.number for link in end.core.links) for end in ends]
        self.assertEqual(numbers[0], numbers[1])
        for end, other in (ends, ends[::-1]):
            for link in end.core.links:
                [peer] = [each for each in other.core.links if each.number == link.number]
                for name in end.buffers:
                    if end.core.knows(name):
                        self.assertIn(link.localTokens[name].rkey, peer.remoteKeys, (name, link.number))

    def test_groupsRecoverFromFailuresAtRandomTimes(self) -> None:
        for seed in range(150):
            try:
                self.play(seed)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error

    def test_buffersInContinuations(self) -> None:
        ends = TwoEnds(version=1)
        for end, count in zip(ends, (1, 5), strict=True):
            for _ in range(count):
                end.hold()
        ends.confirm()
        ends.deliver(0.0, 40)
        counts = [len(ends.times(role, llc.LLCType.ADD_LINK_CONTINUATION)) for role in Role]
        self.assertEqual(sum(counts), 6)
        for end, other in ends.both():
            first, second = end.core.links
            self.assertEqual(
                {first.remoteKeys[name][second].address for name in other.buffers},
                set(map(int, other.buffers)),
            )

    def test_endlessContinuationsEndGroup(self) -> None:
        ends = TwoEnds(version=1)
        for end in ends:
            end.hold()
        ends.confirm()
        server, client = ends
        [key] = client.buffers
        count = 0
        receive = client.core.received

        def received(raw: bytes, now: float, link: LinkLife) -> None:
            nonlocal count
            body = llc.decode(raw).body
            if not isinstance(body, llc.AddLinkContinuation):
                receive(raw, now, link)
                return
            count += 1
            pairs = tuple(llc.RKeyPair(known=key, new=RKey(9000 + 2 * count + n)) for n in range(2))
            more = llc.AddLinkContinuation(link=body.link, remaining=200, pairs=pairs)
            server.core.received(llc.LLC(more.TYPE, llc.LLCHeader(llc.LLCFlags.RESPONSE), more).encode(), now)

        self.patch(client.core, "received", received)
        ends.deliver(0.0, 100)
        self.assertEqual(count, 2)
        self.assertEqual(server.core.state, "ended")

    def test_asymmetricLinkIsReplaced(self) -> None:
        ends = TwoEnds((3, 3), links=3)
        ends[1].ports[1] = LinkEnd(*ends[1].ports[0][:2], QPN(77))
        ends.confirm()
        ends.deliver(0.0, 60)
        reasons = [one.body.reason for _, _, _, one in ends.output if isinstance(one.body, llc.DeleteLink)]
        self.assertIn(llc.DeleteReason.ASYMMETRIC_LINK_NO_LONGER_NEEDED, reasons)
        self.assertFalse(any(isinstance(each, (GroupEnded, RKeyConfirmed)) for each in ends[0].events))


class SilenceTests(SynchronousTestCase):
    """Two links, of which one or both stop delivering."""

    def setUp(self) -> None:
        self.now = 0.0
        self.ends = TwoEnds()
        self.ends.confirm()
        self.turns()

    def turns(self) -> None:
        self.ends.deliver(self.now, 20)

    def lose(self) -> None:
        """Report the loss of the second link at both ends."""
        for end in self.ends:
            end.core.linkDown(0.0, "by the test", end.made[1])
        self.turns()

    def until(self, end: float) -> None:
        while self.now < end:
            times = [each.core.deadline() for each in self.ends]
            self.now = max(self.now, min([end, *[each for each in times if each is not None]]))
            for each in self.ends:
                each.core.expired(self.now)
            self.turns()

    def test_silentLinkBesideAnotherIsAbandoned(self) -> None:
        self.ends.silent = {2}
        self.until(6.9)
        self.assertEqual(self.ends.links, [2, 2])
        self.until(7.1)
        for end in self.ends:
            [lost] = [event for event in end.events if isinstance(event, LinkLost)]
            self.assertEqual(lost.link.number, 2)

    def test_silentPeerKeepsBothLinks(self) -> None:
        self.ends.silent = {1, 2}
        self.until(100.0)
        self.ends.silent = set()
        self.until(120.0)
        for end in self.ends:
            self.assertFalse([event for event in end.events if isinstance(event, (LinkLost, GroupEnded))])

    def test_serverRetriesWithBackoff(self) -> None:
        self.ends.silent = set(range(2, 250))
        self.ends.output.clear()
        self.until(550.0)  # the group is idle and would end
        tried = self.ends.times(Role.SERVER, llc.LLCType.ADD_LINK)
        found = [round(later - earlier) for earlier, later in pairwise(tried)]
        self.assertEqual(found, [2 ** (n + 1) + 5 for n in range(len(found))])
        self.assertGreater(len(found), 5)
        self.ends[0].core.grow(self.ends[0].ports[1], self.now)
        self.turns()
        self.assertEqual(len(self.ends.times(Role.SERVER, llc.LLCType.ADD_LINK)), len(tried) + 1)

    def test_lateAnswerIsReportedAtOnce(self) -> None:
        server, client = self.ends
        self.lose()
        self.assertEqual(self.ends.links, [1, 1])
        self.now = server.core.deadline() or 0.0
        server.core.expired(self.now)
        server.turn(self.now)
        [(_, offered)] = server.core.outgoing()
        self.now += 2.0
        server.core.expired(self.now)
        server.turn(self.now)
        client.core.received(offered, self.now)
        self.turns()
        self.assertEqual(self.ends.links, [1, 1])
        client.grow(self.now)
        self.turns()
        self.assertTrue(client.core.knows(RKey(client.keys)))
        self.until(self.now + 4.1)
        self.assertEqual(self.ends.links, [2, 2])

    def attempt(self) -> list[bytes]:
        """Let the time of the server's next offer come, and return what it sends."""
        server = self.ends[0]
        self.now = server.core.deadline() or 0.0
        server.core.expired(self.now)
        server.turn(self.now)
        return [raw for _, raw in server.core.outgoing()]

    def test_lateAnswerIsNotTakenForThatOfNextOffer(self) -> None:
        """A client that was stopped answers each offer of that time with another queue pair."""
        server, client = self.ends
        self.lose()
        offers = [raw for _ in range(3) for raw in self.attempt()]
        self.assertEqual([llc.decode(raw).type for raw in offers], [llc.LLCType.ADD_LINK] * 2)
        for number, raw in enumerate(offers):
            client.ports[1] = LinkEnd(*client.ports[1][:2], QPN(70 + number))
            client.core.received(raw, self.now)
            client.turn(self.now)
        self.turns()
        self.assertEqual(self.ends.links, [2, 2])
        self.assertEqual(server.made[-1].remote, client.ports[1])

    def test_linkWithUnansweredKeysIsOfferedAgain(self) -> None:
        """A client may be stopped between its answer to ADD LINK and its keys."""
        self.ends = TwoEnds(version=1)
        self.ends.confirm()
        self.turns()
        self.lose()
        server, client = self.ends
        [offer] = self.attempt()
        client.core.received(offer, self.now)
        client.turn(self.now)
        [(_, answer)] = client.core.outgoing()
        server.core.received(answer, self.now)
        [(_, keys)] = server.core.outgoing()
        self.assertEqual(llc.decode(keys).type, llc.LLCType.ADD_LINK_CONTINUATION)
        self.attempt()
        client.core.received(keys, self.now)
        self.turns()
        self.until(30.0)
        self.assertEqual(self.ends.links, [2, 2])

    def test_linkThatCannotBeConnectedIsOfferedAgain(self) -> None:
        """The address of the peer's new port may not be known yet."""
        server = self.ends[0]
        self.lose()
        act = server.act
        failures = 0

        def acted(event: Event, now: float) -> None:
            nonlocal failures
            if isinstance(event, LinkMade) and failures < 2:
                failures += 1
                server.core.linkDown(now, "no route", event.link)
            else:
                act(event, now)

        self.patch(server, "act", acted)
        self.until(30.0)
        self.assertEqual((failures, self.ends.links), (2, [2, 2]))

    def test_unconfirmedLinkIsReplacedAtOnce(self) -> None:
        server, client = self.ends
        self.lose()
        for _ in range(2):
            number = (client.made[-1].number + 1) & 0xFF
            self.now += 0.1
            client.core.received(offered(server.ports[1], number), self.now)
            client.turn(self.now)
            [(by, answer)] = client.core.outgoing()
            answered = llc.decode(answer)
            assert isinstance(answered.body, llc.AddLink)
            self.assertTrue(answered.isResponse and not answered.header.flags & llc.LLCFlags.REJECT)
            self.assertEqual((by, answered.body.link), (client.core.first, number))
            states = {link.number: link.state for link in client.made[-2:]}
            self.assertEqual(states, {number - 1: "gone", number: "confirming"})

    def test_portReturningDuringDeletionIsUsed(self) -> None:
        server = self.ends[0]
        server.core.linkDown(0.0, "its port is down", server.made[1])
        server.core.grow(server.ports[1], self.now)
        self.until(5.0)
        self.assertEqual(self.ends.links, [2, 2])

    def test_portReturningDuringFailedAddIsRequested(self) -> None:
        server, client = self.ends
        self.lose()
        client.core.received(offered(server.ports[1], 99), self.now)
        client.turn(self.now)
        client.core.outgoing()  # without a notification, the server adds no link
        server.core._linkExchanges._next = None
        client.core.grow(client.ports[1], self.now)
        self.assertEqual(client.core.outgoing(), [])
        self.until(20.0)
        self.assertEqual(self.ends.links, [2, 2])

    def test_clientRequestsBackOff(self) -> None:
        server, client = self.ends
        self.lose()

        def asked(now: float, end: float) -> list[float]:
            """Return the times of a client's unanswered requests."""
            times = []
            while now < end:
                client.core.received(
                    llc.LLC(llc.LLCType.TEST_LINK, llc.LLCHeader(version=2), llc.TestLink()).encode(), now
                )
                if llc.RequestAddLink.TYPE in {llc.decode(raw).type for _, raw in client.core.outgoing()}:
                    times.append(now)
                now += 0.5
                client.core.expired(now)
            return times

        client.core.grow(client.ports[1], 0.0)
        self.assertEqual(asked(0.0, 300.0), [2.0**n - 1 for n in range(9)])
        client.core.grow(None, 300.0)
        self.assertEqual(asked(300.0, 550.0), [])

    def test_clientRequestsLinkWhenPortIsUp(self) -> None:
        for version, type in ((1, llc.LLCType.ADD_LINK), (2, llc.LLCType.REQUEST_ADD_LINK)):
            ends = TwoEnds((1, 2), version=version)
            ends.confirm()
            ends.deliver(0.0, 10)
            ends.output.clear()
            ends[0].ports.append(LinkEnd(MACAddress(bytes(6)), GID(bytes(15) + b"9"), QPN(9)))
            ends[1].core.grow(ends[1].ports[1], 0.0)
            ends.deliver(0.0, 10)
            output = [(role, message.type) for _, role, _, message in ends.output]
            self.assertEqual(output[:2], [(Role.CLIENT, type), (Role.SERVER, llc.LLCType.ADD_LINK)])
            self.assertEqual(ends.links, [2, 2])
