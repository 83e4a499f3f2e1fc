"""
Keys of buffers in L{txrdma.smc.group._linkgroup}: CONFIRM RKEY and DELETE RKEY.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import Refused
from txrdma.iba.types import RKey
from txrdma.smc.group._groupstate import (
    Event,
    GroupEnded,
    LinkConfirmed,
    LinkLife,
    RemoteRKeysDeleted,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
    Token,
)
from txrdma.smc.group._keyexchanges import MOST_OVERDUE
from txrdma.smc.group._linkgroup import LinkGroupProtocol, MAX_RKEYS
from txrdma.smc.terms.offer import Role
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wire.llc import (
    ConfirmRKey,
    DeleteReason,
    DeleteRKey,
    LLCFlags,
    LLCType,
)
from txrdma.test.unit.smc.test_linkgroup import active, alone, answers, ask, CLIENT, Pair


class RKeyTests(SynchronousTestCase):
    def test_bothEndsConfirmAtOnce(self) -> None:
        pair = active()
        pair.server.confirmRKey(RKey(1), 0x1000, 0.0)
        pair.client.confirmRKey(RKey(1), 0x2000, 0.0)
        pair.client.confirmRKey(RKey(2), 0x3000, 0.0)
        self.assertFalse(pair.client.knows(RKey(1)))
        found = pair.run()
        self.assertEqual(found, ([RKeyConfirmed(RKey(1))], [RKeyConfirmed(RKey(1)), RKeyConfirmed(RKey(2))]))
        self.assertTrue(pair.client.knows(RKey(2)))
        self.assertEqual(pair.client.target(RKey(1), 0x1000, 16384, 1), 0x1000)
        self.assertEqual(pair.server.target(RKey(2), 0x3000, 16384, 3), 0x3000 + 2 * 16384)

    def test_requestsWaitForLink(self) -> None:
        pair = Pair()
        pair.server.confirmRKey(RKey(1), 0x1000, 0.0)
        self.assertEqual(pair.server.outgoing(), [])
        self.assertEqual(pair.confirm()[0], [LinkConfirmed(), RKeyConfirmed(RKey(1))])

    def test_unconfirmedBufferIsNotWritten(self) -> None:
        client = alone()
        client.learn(RKey(6), 0x6000)
        for rkey, address, index in ((7, 0x6000, 1), (6, 0x6001, 1), (6, 0x6000, 0)):
            error = self.assertRaises(Refused, client.target, RKey(rkey), address, 16384, index)
            self.assertEqual(error.status, Diagnosis.ERR_RTOK)

    def test_peerRefuses(self) -> None:
        for flags in (0xA0, 0xB0):
            server = alone(Role.SERVER)
            server.confirmRKey(RKey(1), 0x1000, 0.0)
            server.received(ask(ConfirmRKey(rkey=RKey(1), address=0x1000), flags), 0.0)
            self.assertEqual(server.events(), [RKeyRefused(RKey(1))])
            self.assertFalse(server.knows(RKey(1)))

    def test_unansweredRequestFails(self) -> None:
        server = alone(Role.SERVER)
        server.confirmRKey(RKey(1), 0x1000, 5.0)
        server.deleteRKeys([RKey(2)], 5.0)
        self.assertEqual(server.deadline(), 10.0)
        server.expired(10.0)
        self.assertEqual(server.events(), [RKeyRefused(RKey(1))])
        server.received(ask(ConfirmRKey(rkey=RKey(1), address=0x1000), 0x80), 10.5)
        server.expired(12.0)
        self.assertEqual(server.events(), [])
        kinds = [LLCType.CONFIRM_RKEY, LLCType.DELETE_RKEY, LLCType.DELETE_RKEY]
        self.assertEqual([one.type for one in answers(server)], kinds)

    def test_lateAnswersUseUpNoBuffers(self) -> None:
        """A buffer that was given up is withdrawn from a peer that accepts it later, and counts it."""
        pair = active()
        now = 0.0
        for end in (pair.server, pair.client):
            end.add(object())
        for number in range(1, MAX_RKEYS + 50):
            pair.server.confirmRKey(RKey(number), 0x1000, now)
            now += 5.0
            pair.server.expired(now)
            self.assertEqual(pair.run(now)[0], [RKeyRefused(RKey(number)), RKeysDeleted((RKey(number),))])
        self.assertEqual((len(pair.server.first.localTokens), len(pair.client.first.remoteKeys)), (0, 0))

    def test_refusedBuffersLeaveNothing(self) -> None:
        server = alone(Role.SERVER)
        for number in range(1, 100):
            server.confirmRKey(RKey(number), 0x1000, 0.0)
            server.received(ask(ConfirmRKey(rkey=RKey(number), address=0x1000), 0xA0), 0.0)
            server.confirmRKey(RKey(1000 + number), 0x1000, 0.0)
            server.expired(10.0)
        self.assertEqual(len(server.first.localTokens), MOST_OVERDUE)

    def test_silentPeerGetsLessTime(self) -> None:
        server = alone(Role.SERVER)
        for number, seconds in enumerate((5.0, 2.0, 2.0), 1):
            server.confirmRKey(RKey(number), 0x1000, 5.0)
            self.assertEqual(server.deadline(), 5.0 + seconds)
            server.expired(10.0)
        server.received(ask(ConfirmRKey(rkey=RKey(1), address=0x1000), 0x80), 10.5)
        self._answer(server, 1)
        server.confirmRKey(RKey(4), 0x1000, 10.5)
        self.assertEqual(server.deadline(), 15.5)

    def _deletions(self, count: int) -> LinkGroupProtocol:
        """Return a group that has deleted this many buffers, one every two seconds, without a response."""
        server = alone(Role.SERVER)
        for number in range(count):
            server.deleteRKeys([RKey(1 + number)], 2.0 * number)
            server.expired(2.0 * number + 2.0)
        return server

    def _answer(self, server: LinkGroupProtocol, *keys: int) -> list[Event]:
        """Return how a group processes a late response to a DELETE RKEY of these keys."""
        rkeys = (*[RKey(key) for key in keys], *[RKey(0)] * (8 - len(keys)))
        server.received(ask(DeleteRKey(count=len(keys), rkeys=rkeys), 0x80), 100.0)
        return server.events()

    def test_bufferStaysUntilDeletionIsAnswered(self) -> None:
        server = self._deletions(2)
        self.assertEqual(server.events(), [])
        self.assertEqual(len(answers(server)), 2)
        self.assertEqual(self._answer(server, 1), [RKeysDeleted((RKey(1),))])
        self.assertEqual(self._answer(server, 2), [RKeysDeleted((RKey(2),))])
        self.assertEqual(self._answer(server, 2), [])

    def test_answerWithoutKeysIsForOldest(self) -> None:
        server = self._deletions(2)
        self.assertEqual(self._answer(server), [RKeysDeleted((RKey(1),))])
        self.assertEqual(self._answer(server), [RKeysDeleted((RKey(2),))])

    def test_unansweredDeletionsAreBounded(self) -> None:
        server = self._deletions(34)
        self.assertEqual(server.events(), [RKeysDeleted((RKey(1),)), RKeysDeleted((RKey(2),))])
        server.linkDown(100.0, "flushed")
        gone = [event for event in server.events() if isinstance(event, RKeysDeleted)]
        self.assertEqual(gone, [RKeysDeleted((RKey(number),)) for number in range(3, 35)])

    def test_unansweredDeletionsDelayConnectionOnce(self) -> None:
        """A new buffer is announced before queued deletions, which a silent peer delays by 2 s each."""
        server = alone(Role.SERVER)
        for number in range(5):
            server.deleteRKeys([RKey(1 + number)], 0.0)
        server.confirmRKey(RKey(10), 0x1000, 0.0)
        server.confirmRKey(RKey(11), 0x1000, 0.0)
        server.expired(2.0)
        server.received(ask(ConfirmRKey(rkey=RKey(10), address=0x1000), 0x80), 2.0)
        server.received(ask(ConfirmRKey(rkey=RKey(11), address=0x1000), 0x80), 2.0)
        self.assertEqual(server.events(), [RKeyConfirmed(RKey(10)), RKeyConfirmed(RKey(11))])
        kinds = [LLCType.DELETE_RKEY, LLCType.CONFIRM_RKEY, LLCType.CONFIRM_RKEY, LLCType.DELETE_RKEY]
        self.assertEqual([one.type for one in answers(server)], kinds)

    def test_buffersOfUnansweredDeletionsAreBounded(self) -> None:
        """A peer that answers no deletion cannot use up the 255 buffers of a group."""
        server = alone(Role.SERVER)
        for number in range(0, 240, 8):
            server.deleteRKeys([RKey(1 + number + each) for each in range(8)], 0.0)
        for number in range(30):
            server.expired(2.0 * number + 2.0)
        gone = [key for event in server.events() if isinstance(event, RKeysDeleted) for key in event.rkeys]
        self.assertEqual(gone, [RKey(number) for number in range(1, 241 - 32)])

    def test_eightKeysInOneMessage(self) -> None:
        pair = active()
        for number in range(11):
            pair.server.confirmRKey(RKey(number), number << 20, 0.0)
        pair.run()
        pair.names()
        keys = [RKey(number) for number in range(10)]
        pair.server.deleteRKeys(keys, 0.0)
        self.assertFalse(pair.server.knows(RKey(0)))
        first, second = tuple(keys[:8]), tuple(keys[8:])
        found = pair.run()
        self.assertEqual(found[0], [RKeysDeleted(first), RKeysDeleted(second)])
        self.assertEqual(found[1], [RemoteRKeysDeleted(first), RemoteRKeysDeleted(second)])
        self.assertRaises(Refused, pair.client.target, RKey(0), 0, 16384, 1)
        pair.client.target(RKey(10), 10 << 20, 16384, 1)

    def test_answerNamesUnknownKeys(self) -> None:
        client = alone()
        client.learn(RKey(2), 0)
        keys = (RKey(1), RKey(2), RKey(3), *[RKey(0)] * 5)
        client.received(ask(DeleteRKey(count=3, rkeys=keys)), 0.0)
        [answer] = answers(client)
        assert isinstance(answer.body, DeleteRKey)
        self.assertEqual(answer.body.errorMask, 0b10100000)
        self.assertEqual(answer.header.flags, LLCFlags.RESPONSE | LLCFlags.NEGATIVE)

    def test_bufferBeyond255IsRefusedAndGroupContinues(self) -> None:
        client = alone()
        for number in range(1, MAX_RKEYS + 2):
            client.received(ask(ConfirmRKey(rkey=RKey(number), address=number)), 0.0)
        flags = [one.header.flags for one in answers(client)]
        self.assertEqual(flags, [LLCFlags.RESPONSE] * MAX_RKEYS + [LLCFlags.RESPONSE | LLCFlags.NEGATIVE])
        client.received(ask(ConfirmRKey(rkey=RKey(1), address=77)), 0.0)  # may be announced again
        self.assertEqual(client.target(RKey(1), 77, 16384, 1), 77)
        self.assertTrue(client.usable)

    def test_boundHoldsForEachLink(self) -> None:
        client = alone()
        further = LinkLife(CLIENT, 2)
        for number in range(1, MAX_RKEYS + 1):
            further.remoteKeys[RKey(number)] = {}
        client.learn(RKey(1000), 1)
        tokens = {client.first: Token(RKey(1000), 1), further: Token(RKey(1001), 1)}
        self.assertRaises(Refused, client._learn, tokens)

    def test_pendingRequestsEndWithGroup(self) -> None:
        server = alone(Role.SERVER)
        server.confirmRKey(RKey(1), 0x1000, 0.0)
        server.deleteRKeys([RKey(2)], 0.0)
        server.linkDown(0.0, "flushed")
        ended = GroupEnded(DeleteReason.LOST_PATH, "flushed")
        self.assertEqual(server.events(), [RKeyRefused(RKey(1)), RKeysDeleted((RKey(2),)), ended])
        server.confirmRKey(RKey(3), 0x1000, 0.0)
        self.assertEqual(server.events(), [RKeyRefused(RKey(3))])
