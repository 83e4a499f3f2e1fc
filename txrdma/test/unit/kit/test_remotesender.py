"""Sending by remote write to receivers that are unreachable, slow or full, or refuse requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis.strategies import integers, lists, one_of, sampled_from

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit import remotesender
from txrdma.kit.remotesender import (
    CROWDED,
    DAMAGED,
    FULL,
    LONGEST_PAUSE,
    LONGEST_RETRY_AFTER,
    MOST_ANSWER,
    REFUSED,
    RemoteRequest,
    RemoteSender,
)
from txrdma.kit.spool import BLOCK_OCTETS, Spool
from txrdma.test.support.httpagents import Answer, Prepared, PreparedAgent

URL = "http://engine/api/v1/write"
OK = Prepared(204)
AWAY = ConnectionRefusedError()


def inThread(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
    """Call a function immediately, without a thread."""
    return maybeDeferred(function, *args)


class Receiver:
    """A sender with its spool, a clock, and a receiver that answers as a test wants."""

    def __init__(self, folder: str, most: int = 1 << 22) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.agent = PreparedAgent(OK)
        self.folder = folder
        self.most = most
        self.number = 0
        self.sender = self.started()

    def started(self) -> RemoteSender:
        self.spool = Spool(self.folder, self.most)
        return RemoteSender(
            *(self.clock, self.agent, URL, {"X-Scope-OrgID": "us"}, 10.0, self.spool, inThread)
        )

    def restart(self) -> None:
        """Close the sender, and start another one with the same spool, as the next process does."""
        self.sender.close()
        self.sender = self.started()

    def add(self, times: int = 1) -> None:
        """Add requests of ten samples with the current time, whose bodies are their numbers."""
        for _ in range(times):
            self.number += 1
            self.sender.add([RemoteRequest(b"%d" % self.number, 10, int(self.clock.seconds()))])

    def send(self) -> Deferred[bool]:
        return Deferred.fromCoroutine(self.sender.send(5.0))

    def taken(self) -> list[int]:
        """Return the numbers of received requests, and remove them."""
        found = [int(request.body) for request in self.agent.requests]
        self.agent.requests.clear()
        return found


class SenderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.receiver = self.made()

    def made(self, most: int = 1 << 22) -> Receiver:
        receiver = Receiver(self.mktemp(), most)
        self.addCleanup(lambda: receiver.sender.close())
        return receiver

    def sent(self, answer: Answer = OK) -> bool:
        """Send to a receiver that gives the same answer to all requests."""
        self.receiver.agent.usual = answer
        return bool(self.successResultOf(self.receiver.send()))

    def test_order(self) -> None:
        """Requests are sent once, in order, with the headers of the protocol, and are not written to disk."""
        self.receiver.add(3)
        self.assertTrue(self.sent())
        headers = self.receiver.agent.requests[0].headers
        for name, value in (
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "snappy"),
            ("X-Prometheus-Remote-Write-Version", "0.1.0"),
            ("X-Scope-OrgID", "us"),
        ):
            self.assertEqual(headers.getRawHeaders(name), [value])
        self.assertEqual(self.receiver.taken(), [1, 2, 3])
        self.assertFalse(self.sent())
        self.assertEqual((self.receiver.sender.sent, self.receiver.sender.waiting), (30, 0))
        self.assertEqual((self.receiver.sender.oldestSeconds(), list(self.receiver.spool.records)), (0.0, []))

    def test_away(self) -> None:
        """If the receiver is unreachable for an hour, nothing is lost, and attempts become less frequent."""
        receiver, sender = self.receiver, self.receiver.sender
        for _ in range(720):
            receiver.add()
            self.assertFalse(self.sent(AWAY))
            receiver.clock.advance(5.0)
        self.assertIn(len(receiver.taken()), range(3600 // int(LONGEST_PAUSE), 70))
        self.assertEqual((sender.waiting, sender.oldestSeconds(), sender.lost), (7200, 3600.0, {}))
        self.assertIn("refused", sender.problem)
        receiver.clock.advance(LONGEST_PAUSE)
        self.assertTrue(self.sent())
        self.assertEqual(receiver.taken(), list(range(1, 721)))
        self.assertEqual((sender.waiting, sender.sent, sender.problem), (0, 7200, ""))

    def test_invalidName(self) -> None:
        """If the receiver's name is invalid, requests wait on disk, as for an unreachable receiver."""
        for _ in range(3):
            self.receiver.add()
            self.assertFalse(self.sent(ValueError("invalid hostname: my_engine")))
        self.assertEqual(len(self.receiver.spool.records), 3)
        self.assertIn("my_engine", self.receiver.sender.problem)

    def test_busy(self) -> None:
        """A request is repeated if the receiver is busy or answers with a server error."""
        for answer in (
            Prepared(429, b"slow down"),
            Prepared(500, b"disk full"),
            Prepared(302),
            Prepared(503),
        ):
            self.receiver.add()
            self.assertFalse(self.sent(answer))
            self.assertIn(str(answer.code), self.receiver.sender.problem)
            self.assertFalse(self.sent(), "it has to wait")
            self.receiver.clock.advance(5.0)
            self.receiver.taken()
            self.assertTrue(self.sent())
            self.assertEqual(self.receiver.taken(), [self.receiver.number])
        self.assertEqual(self.receiver.sender.lost, {})

    def test_clockSetBack(self) -> None:
        """After a failure requests are sent again although the system's clock was set back by an hour."""
        for answer in (AWAY, Prepared(429, headers={"Retry-After": "120"})):
            self.receiver.add()
            self.sent(answer)
            self.receiver.clock.rightNow -= 3600.0
            self.assertTrue(self.sent())

    def test_retryAfter(self) -> None:
        """A receiver can request a pause, within bounds; dates and invalid texts are ignored."""
        for text, seconds in (
            ("120", 120.0),
            ("9999999", LONGEST_RETRY_AFTER),
            ("Wed, 21 Oct 2026 07:28:00 GMT", 5.0),
            ("9" * 5000, 5.0),
            ("-1", 5.0),
        ):
            self.receiver.add()
            self.sent(Prepared(429, headers={"Retry-After": text}))
            self.receiver.clock.advance(seconds - 0.1)
            self.assertFalse(self.sent())
            self.receiver.clock.advance(0.2)
            self.assertTrue(self.sent())

    def test_controlCharacters(self) -> None:
        """The answer of a receiver has no control characters in the problem, and fits into a line."""
        self.receiver.add()
        self.sent(Prepared(500, b"no\r\n\x1b[2J\xff"))
        self.assertIn("no \\x1b[2J\N{REPLACEMENT CHARACTER}", self.receiver.sender.problem)

    def test_refused(self) -> None:
        """A request that is refused for its content is dropped and counted; the next requests are sent."""
        self.receiver.add(3)
        self.receiver.agent.answers += [Prepared(400, b"out of order\nsample"), Prepared(400, b"again")]
        self.assertTrue(self.sent())
        sender = self.receiver.sender
        self.assertEqual((sender.sent, sender.lost), (10, {f"{REFUSED} (400)": 20}))
        self.assertEqual((sender.lostAt, sender.problem), (5000.0, ""))

    def test_limit(self) -> None:
        """Beyond the limit of the spill the oldest requests are dropped and counted."""
        self.receiver = self.made(10 * BLOCK_OCTETS)
        self.receiver.add(15)
        self.sent(AWAY)
        self.assertEqual(self.receiver.sender.lost, {FULL: 50})
        self.receiver.taken()
        self.receiver.clock.advance(5.0)
        self.sent()
        self.assertEqual(self.receiver.taken(), list(range(6, 16)))

    def test_restart(self) -> None:
        """The next process sends the remaining requests, each once."""
        self.receiver.add(2)
        self.sent(AWAY)
        self.receiver.taken()
        self.receiver.restart()
        self.receiver.add()
        self.receiver.agent.answers += [OK, AWAY]
        self.sent()
        self.receiver.restart()
        self.sent()
        self.assertEqual(self.receiver.taken(), [1, 2, 2, 3])
        self.assertEqual(self.receiver.sender.waiting, 0)

    def test_damaged(self) -> None:
        """A record that was damaged by a crash of the host is counted, and other records are sent."""
        self.receiver.add(3)
        self.sent(AWAY)
        self.receiver.taken()
        path = sorted(Path(self.receiver.folder).iterdir())[1]
        path.write_bytes(path.read_bytes()[:3])
        self.receiver.restart()
        self.sent()
        self.assertEqual(self.receiver.taken(), [1, 3])
        self.assertEqual(self.receiver.sender.lost, {DAMAGED: 10})

    def test_fullDisk(self) -> None:
        """While the disk is full, requests are queued in memory, within bounds, and are sent if possible."""
        receiver = self.receiver
        self.patch(remotesender, "MOST_QUEUED", 3)
        self.patch(receiver.spool, "append", lambda *_: (_ for _ in ()).throw(DeviceUnavailable("full")))
        receiver.add(5)
        receiver.agent.usual = AWAY
        self.failureResultOf(receiver.send(), DeviceUnavailable)
        self.assertEqual((receiver.sender.waiting, receiver.sender.lost), (30, {CROWDED: 20}))
        receiver.clock.advance(5.0)
        receiver.taken()
        self.assertTrue(self.sent())
        self.assertEqual(receiver.taken(), [3, 4, 5])

    def test_brokenDisk(self) -> None:
        """Requests dropped for one that then cannot be written are counted."""
        receiver = self.receiver = self.made(2 * BLOCK_OCTETS)
        receiver.add(2)
        self.sent(AWAY)
        (Path(receiver.folder) / "incomplete").mkdir()
        receiver.add()
        receiver.clock.advance(1.0)
        self.failureResultOf(receiver.send(), DeviceUnavailable)
        sender = receiver.sender
        self.assertEqual((sender.waiting, sender.lost, sender.lostAt), (20, {FULL: 10}, 5001.0))

    def test_slow(self) -> None:
        """After a timeout of the receiver all requests are on disk; a received one may be sent again."""
        receiver = self.receiver
        receiver.add(2)
        receiver.agent.usual = None
        sending = receiver.send()
        receiver.clock.advance(10.0)
        self.assertFalse(self.successResultOf(sending))
        self.assertEqual((len(receiver.spool.records), receiver.agent.cancelled), (2, 1))
        self.assertEqual(receiver.sender.problem, "no response in 10 s")
        receiver.clock.advance(5.0)
        self.sent()
        self.assertEqual(receiver.taken(), [1, 1, 2])

    def test_turns(self) -> None:
        """One run sends for a limited time; the remaining requests are on disk until the next run."""
        receiver = self.receiver

        def slowly(_: object) -> Prepared:
            receiver.clock.advance(3.0)
            return OK

        receiver.add(5)
        receiver.agent.usual = slowly
        self.assertTrue(self.successResultOf(receiver.send()))
        self.assertEqual((receiver.taken(), len(receiver.spool.records)), ([1, 2], 3))
        self.assertTrue(self.successResultOf(receiver.send()))
        self.assertEqual(receiver.taken(), [3, 4])

    def test_longAnswer(self) -> None:
        """The body of an answer is read up to a limit."""
        self.receiver.add()
        self.sent(Prepared(500, b"x" * (MOST_ANSWER + 1), ending=None))
        self.assertLess(len(self.receiver.sender.problem), 300)

    @given(lists(one_of(integers(1, 4), sampled_from([OK, AWAY, Prepared(500), "restart"])), max_size=40))
    def test_anyOrder(self, steps: list[Any]) -> None:
        """Each request is accepted once, in order, with any failures and restarts of the process."""
        with TemporaryDirectory() as folder:
            receiver = Receiver(folder)
            accepted: list[int] = []
            answer: Answer = OK

            def answered(request: Any) -> Answer:
                if answer is OK:
                    accepted.append(int(request.body))
                return answer

            receiver.agent.usual = answered
            for step in [*steps, OK]:
                if isinstance(step, int):
                    receiver.add(step)
                    continue
                if step == "restart":
                    self.successResultOf(Deferred.fromCoroutine(receiver.sender.spill()))
                    receiver.restart()
                else:
                    answer = step
                receiver.clock.advance(LONGEST_PAUSE)
                self.successResultOf(receiver.send())
            receiver.sender.close()
            self.assertEqual(accepted, list(range(1, receiver.number + 1)))
