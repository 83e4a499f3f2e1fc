"""
Faults at messages of every LLC flow: data arrives or connections end, and no link group remains.

L{txrdma.test.soak.smc.test_flowfaults} plays each fault at each message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from txrdma.smc.wire.llc import LLCType
from txrdma.test.support.smc.flowfaults import FAULTS, Flow, FlowTestCase


def contact(case: FlowTestCase) -> Iterator[None]:
    """A first contact: CONFIRM LINK, and a second link."""
    yield
    case.begin()


def returning(case: FlowTestCase) -> Iterator[None]:
    """A port of both hosts is up again: the client requests a link, and the server adds it."""
    case.enable(1, False)
    case.talkers(2)
    yield
    case.enable(1, True)


def returningHere(case: FlowTestCase) -> Iterator[None]:
    """A port of the client is up again, which the server does not know: the client requests a link."""
    case.enable(1, False, case.client)
    case.talkers(1)
    case.linked(2)
    yield
    case.enable(1, True, case.client)


def lostBy(isServer: bool) -> Flow:
    """Return a flow in which a link fails at one end: DELETE LINK, and the server adds the link again."""

    def lost(case: FlowTestCase) -> Iterator[None]:
        case.talkers(2)
        case.linked(2)
        yield
        group = case.groupOf(case.server if isServer else case.client)
        assert group is not None
        group.links[1].broken("for the test")

    return lost


def joining(case: FlowTestCase) -> Iterator[None]:
    """A further connection: each end announces a buffer by CONFIRM RKEY."""
    case.talkers(1)
    case.linked(2)
    yield
    case.begin()


def leaving(case: FlowTestCase) -> Iterator[None]:
    """Connections end: each end withdraws buffers by DELETE RKEY."""
    case.talkers(4)
    case.linked(2)
    yield
    for here, there in (case.ends.pop() for _ in range(2)):
        here.transport.loseConnection()
        there.transport.loseConnection()


def idling(case: FlowTestCase) -> Iterator[None]:
    """Connections are idle: both links are tested."""
    case.talkers(1)
    case.linked(2)
    yield


def endedBy(isServer: bool) -> Flow:
    """Return a flow in which one end ends the link group and its connection, by DELETE LINK for all links."""

    def ended(case: FlowTestCase) -> Iterator[None]:
        case.talkers(1)
        case.linked(2)
        case.isFatal = True
        case.isHarmless = False
        yield
        group = case.groupOf(case.server if isServer else case.client)
        assert group is not None
        group.shutdown()

    return ended


def continuing(case: FlowTestCase) -> Iterator[None]:
    """A further connection on five links: their keys do not fit into CONFIRM RKEY."""
    case.options = replace(case.options, links=5)
    case.talkers(1)
    case.linked(5)
    yield
    case.begin()


class FlowFaultTests(FlowTestCase):
    """
    Each flow, with each fault at a few of its messages, and with at least one fault at each message.

    @ivar few: number of messages at which each fault is played; None: all.
    """

    few: int | None = 1
    slowBecause = "Each fault takes a minute of a separate simulation."

    def combinations(self, count: int) -> Iterator[tuple[int, str]]:
        """Yield the messages and faults to play in a flow of C{count} messages; each fault has others."""
        few = count if self.few is None else min(count, self.few)
        rounds = -(-count // len(FAULTS))  # each step has a fault in one of them
        for at, fault in enumerate(FAULTS):
            chosen = {(at + each * len(FAULTS)) % count for each in range(rounds)}
            chosen |= {(at + each * count // few) % count for each in range(few)}
            for step in sorted(chosen):
                yield step, fault

    def playAll(self, flow: Flow, *expected: LLCType, versions: tuple[int, ...] = (2,)) -> None:
        """
        Play a flow without a fault and with each combination; a failure names its combination.

        @param expected: types of messages that the flow must contain.
        """
        for version in versions:
            self.version = version
            self.play(flow, None, "")
            output = [one.type for one in self.output]
            self.assertLessEqual(set(expected), set(output))
            retained = plays = 0
            for step, fault in self.combinations(len(output)):
                try:
                    self.play(flow, step, fault)
                except Exception as error:
                    where = f"version {version}, {fault} at message {step}, {output[step].name}"
                    raise AssertionError(f"{where}: {error}") from error
                plays += 1
                retained += all(here.isWhole and there.isWhole for here, there in self.ends)
            self.assertGreater(retained * len(FAULTS), plays, "hardly anything that is harmless")

    def test_noFaultHangsFirstContact(self) -> None:
        self.playAll(contact, LLCType.CONFIRM_LINK, LLCType.ADD_LINK)
        self.playAll(contact, LLCType.ADD_LINK_CONTINUATION, versions=(1,))

    def test_noFaultHangsAdditionOfLinkToGroupWithBuffers(self) -> None:
        self.playAll(returning, LLCType.REQUEST_ADD_LINK, LLCType.ADD_LINK)
        self.playAll(returning, LLCType.ADD_LINK_CONTINUATION, versions=(1,))

    def test_noFaultHangsReplacementOfAsymmetricLink(self) -> None:
        self.playAll(returningHere, LLCType.REQUEST_ADD_LINK, LLCType.ADD_LINK, LLCType.DELETE_LINK)

    def test_noFaultHangsReplacementOfLinkThatFailedAtOneEnd(self) -> None:
        for isServer in (True, False):
            self.playAll(lostBy(isServer), LLCType.DELETE_LINK, LLCType.ADD_LINK)

    def test_noFaultHangsConfirmRKeyOnTwoLinks(self) -> None:
        self.playAll(joining, LLCType.CONFIRM_RKEY)

    def test_noFaultHangsDeleteRKey(self) -> None:
        self.playAll(leaving, LLCType.DELETE_RKEY)

    def test_noFaultHangsTestLink(self) -> None:
        self.isTesting = True
        self.playAll(idling, LLCType.TEST_LINK)

    def test_noFaultHangsDeleteLinkForAllLinks(self) -> None:
        for isServer in (True, False):
            for step, fault in self.combinations(2 + (not isServer)):
                self.play(endedBy(isServer), step, fault)
                self.assertGreater(len(self.output), step)

    def test_noFaultHangsConfirmRKeyContinuationOnFiveLinks(self) -> None:
        self.count = 5
        self.playAll(continuing, LLCType.CONFIRM_RKEY_CONTINUATION)
