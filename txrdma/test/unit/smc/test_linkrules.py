"""
Every LLC message in every state of a link group: valid messages, and violations that end the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.group._groupstate import Event, GroupEnded, LinkRefused, RemoteRKeysDeleted, RuleBroken
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.terms.offer import Role
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkExtension,
    Body,
    decode,
    DeleteLink,
    DeleteReason,
    LLC,
    LLCFlags,
    LLCHeader,
    LLCType,
)
from txrdma.test.support.smc.linkrules import bodies, FAR
from txrdma.test.unit.smc.test_linkexchanges import End

STATES = (
    *("fresh", "confirming", "active", "wanted", "offered", "keys", "making", "linking", "deleting"),
    *("ending", "ended"),
)
"""States of a group; the middle ones are states of an exchange about links in an active group."""


def stateOf(core: LinkGroupProtocol) -> str:
    """Return the state of a group: one of L{STATES}."""
    flow = core._linkExchanges.current
    if core.state != "active" or flow is None:
        return core.state
    stage: str = getattr(flow, "stage", "deleting")
    return "linking" if stage == "confirming" else stage


class Group:
    """One end of a group, in a state that two ends reach by the rules."""

    def __init__(self, role: Role, state: str, version: int) -> None:
        links = 1 if state in STATES[:3] else 2
        self.version = version
        self.end = End(role, 2, links, version)
        self.peer = End(Role.CLIENT if role is Role.SERVER else Role.SERVER, 2, links, version)
        self.core = self.end.core
        self._steps = self._follow()
        while self.state != state:
            next(self._steps)

    @property
    def state(self) -> str:
        return stateOf(self.core)

    def _follow(self) -> Iterator[None]:
        """Exchange messages step by step: until there are two links, then one link, then none."""
        ends = (self.end, self.peer)
        for end, other in (ends, ends[::-1]):
            end.core.confirm(0.0, other.ports[0])
            yield
        yield from self._talk()
        if len(self.end.made) > 1:
            self.core.linkDown(0.0, "for the test", self.end.made[1])
            yield
        yield from self._talk()
        self.core.shutdown(0.0)
        yield
        yield from self._talk()

    def _talk(self) -> Iterator[None]:
        for _ in range(20):
            for end, other in ((self.end, self.peer), (self.peer, self.end)):
                while events := end.core.events():  # a new link is connected before the peer is notified
                    for event in events:
                        yield
                        end.act(event, 0.0)
                        yield
                for link, raw in end.core.outgoing():
                    for there in [each for each in other.made if each.number in (0, link.number)][:1]:
                        other.core.received(raw, 0.0, there)
                    yield

    def goesOn(self) -> bool:
        """Return whether the current exchange completes as if the message had not been sent."""
        for _ in range(60):
            if self.state == stateOf(self.peer.core) == "active":
                break
            next(self._steps, None)
        numbers = [[link.number for link in end.core.links] for end in (self.end, self.peer)]
        return numbers[0] == numbers[1] and self.core.state == "active"

    def receive(self, body: Body, isResponse: bool) -> str:
        """Have the peer send a message, and return the outcome: one of the words in L{expected}."""
        before, core = self.state, self.core
        waiting, core._core.output = core._core.output, []
        events, core._core.pending = core._core.pending, []
        extension = None
        if isinstance(body, AddLink) and self.version == 2:
            extension = AddLinkExtension(FAR.gid, True, ())
        header = LLCHeader(LLCFlags.RESPONSE if isResponse else LLCFlags(0), self.version)
        core.received(LLC(body.TYPE, header, body, extension).encode(), 0.0, core.first)
        printed = [decode(raw) for _, raw in core._core.output]
        reported = core._core.pending
        core._core.output = waiting + core._core.output
        core._core.pending = events + core._core.pending
        return self._outcome(body, before, printed, reported)

    def _outcome(self, body: Body, before: str, printed: list[LLC], reported: list[Event]) -> str:
        if reported and isinstance(reported[0], RuleBroken):
            assert reported[0].text, "a violation without a text"
            if before == "confirming":
                assert reported[1:] == [LinkRefused(Diagnosis.NOACTLINK)] and not printed, (reported, printed)
                return "refused"
            [deletion] = printed
            assert isinstance(deletion.body, DeleteLink) and deletion.header.flags == LLCFlags.ALL_LINKS
            assert deletion.body.reason == DeleteReason.PROTOCOL_VIOLATION
            assert reported[1:] == [GroupEnded(DeleteReason.PROTOCOL_VIOLATION, reported[0].text)], reported
            return "ended"
        if reported and isinstance(reported[0], LinkRefused):
            return "refused"
        if self.state != before or any(not isinstance(each, RemoteRKeysDeleted) for each in reported):
            return "heeded"
        if not printed:
            return "nothing"
        [answer] = printed
        assert (answer.type, answer.isResponse) == (body.TYPE, True), answer
        return "rejected" if answer.header.flags & LLCFlags.REJECT else "answered"


def expected(role: Role, state: str, type: LLCType, isResponse: bool) -> str:
    """
    Return the expected outcome of a message that names an unknown link or an unknown end.

    C{"ended"}: the group, with DELETE LINK; C{"refused"}: the handshake, with Decline; C{"answered"};
    C{"rejected"}; C{"heeded"}: it changes the state; C{"nothing"}: it is ignored, or is queued.
    """
    isServer, isQuiet = role is Role.SERVER, state in ("fresh", "confirming", "active", "ending")
    if state == "ended":
        return "nothing"
    if isResponse:
        if (type, state) == (LLCType.DELETE_LINK, "ending"):
            return "heeded"
        if type is LLCType.CONFIRM_LINK and isServer and state == "confirming":
            return "refused"
        if type is LLCType.REQUEST_ADD_LINK and isServer and state not in ("fresh", "confirming", "ending"):
            return "ended"
        return "nothing"
    if type in (LLCType.TEST_LINK, LLCType.CONFIRM_RKEY, LLCType.DELETE_RKEY, LLCType.DELETE_LINK):
        return "answered"
    if type is LLCType.CONFIRM_LINK:
        if isServer or state == "confirming":
            return "refused" if state == "confirming" else "ended"
        return "nothing" if state in ("fresh", "ending") else "answered"
    if type is LLCType.ADD_LINK and not isServer and not isQuiet:
        return "heeded"
    if type is LLCType.REQUEST_ADD_LINK and not isServer and state not in ("fresh", "confirming", "ending"):
        return "ended"
    isAsking = type in (LLCType.ADD_LINK, LLCType.REQUEST_ADD_LINK)
    return "rejected" if isAsking and isQuiet else "nothing"


def reachable(role: Role, version: int) -> Iterator[str]:
    """Return the states that this end of a group can reach."""
    for state in STATES:
        if state == "keys" and version == 2:
            continue  # ADD LINK of version 2 has space for all keys
        if role is Role.SERVER or state not in ("offered", "deleting"):
            yield state


class MatrixTests(SynchronousTestCase):
    """Every message in every state, of either version, at either end."""

    def everyMessage(self) -> Iterator[tuple[Group, Body, bool, str]]:
        """Iterate over groups in each state, and over each message for them."""
        for role in Role:
            for version in (1, 2):
                for state in reachable(role, version):
                    for body in bodies(9):
                        for isResponse in (False, True):
                            what = f"{role}, version {version}, {state}: {body.TYPE.name}, {isResponse}"
                            yield Group(role, state, version), body, isResponse, what

    def test_outcomeOfEachMessageInEachState(self) -> None:
        for group, body, isResponse, what in self.everyMessage():
            role, state = group.end.role, group.state
            found = group.receive(body, isResponse)
            self.assertEqual(found, expected(role, state, body.TYPE, isResponse), what)

    def test_harmlessMessagesDoNotDisturbFlow(self) -> None:
        count = 0
        for group, body, isResponse, what in self.everyMessage():
            if group.state in STATES[3:9] and group.receive(body, isResponse) not in ("ended", "heeded"):
                self.assertTrue(group.goesOn(), what)
                count += 1
        self.assertGreater(count, 200)

    def test_reusedLinkNumberEndsGroup(self) -> None:
        for version in (1, 2):
            for state in ("active", "wanted", "keys", "linking")[: 4 if version == 1 else 2]:
                group = Group(Role.CLIENT, state, version)
                self.assertEqual(group.receive(bodies(group.core.first.number)[1], False), "ended", state)
