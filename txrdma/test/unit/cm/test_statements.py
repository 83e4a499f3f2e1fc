"""The numbers in the pages of L{PAGES} equal those of the code, and the statements about them are true."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from twisted.internet.endpoints import clientFromString
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.cm.connections._credits import FIRST_RECEIVES
from txrdma.cm.connections.endpoints import USUAL
from txrdma.cm.connections.hostnames import ATTEMPT_DELAY
from txrdma.cm.connections.queuepairs import PATIENT_TIMEOUT
from txrdma.cm.connections.sendqueue import HIGH_WATER, OUTSTANDING
from txrdma.cm.core.dispatcher import MOST_SIDR_REQUESTS
from txrdma.cm.core.exchange import LONGEST_DELAY
from txrdma.cm.rsocket._core import RSocket, Sizes
from txrdma.cm.rsocket.messages import immediate, ImmediateKind, MAPPED_BYTES, MOST_MAPPINGS
from txrdma.cm.terms import Greeting, KEEPALIVE, LONGEST
from txrdma.error import InvalidRequest
from txrdma.iba.times import ackTimeoutSeconds
from txrdma.iba.types import RKey
from txrdma.kit.shutdown import LEAVING_SECONDS
from txrdma.messages.memory import MemoryName
from txrdma.messages.protocol import MessageFactory
from txrdma.soft.core.netdev import portOfShare, SHARES
from txrdma.soft.core.roundtrip import PATH_SECONDS
from txrdma.soft.host._coordinator import ROUNDS, SERVICES
from txrdma.soft.host._messages import (
    Enter,
    ForwardedPacket,
    LONGEST_PACKET,
    ManagementNotice,
    Ping,
    ProbeSeen,
    ServiceNotice,
)
from txrdma.soft.host.member import FIRST_PING_SECONDS, NAMES, PING_SECONDS
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.unit.cm.test_searching import ESTABLISHED, WHOLE
from txrdma.testing.protocols import ProducerRecorder

DOCS = Path(txrdma.__file__).parent.parent / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("cm", "rsockets", "cm-manager")]
WORDS = {"two": 2, "four": 4, "five": 5, "eight": 8, "ten": 10}
REASON = None if DOCS.exists() else "not a checkout"

CONSTANTS: tuple[tuple[str, tuple[float, ...]], ...] = (
    # Message protocols
    ("pauses the producer while # requests or # MiB are queued", (USUAL.sends, HIGH_WATER / (1 << 20))),
    ("the next of its addresses is tried after # seconds", (ATTEMPT_DELAY,)),
    ("`longest=` (of a message, #M by default)", (LONGEST >> 20,)),
    ("(seconds between probes of an idle peer, # by default;", (KEEPALIVE,)),
    ("queued messages have # seconds to arrive", (LEAVING_SECONDS,)),
    ("recognize each other by a greeting of # bytes", (Greeting.size,)),
    ("than the peer's receives (`messageBytes`, # by default)", (USUAL.messageBytes,)),
    ("up to the peer's `longest`, # MiB by default", (USUAL.longest >> 20,)),
    ("a SEND of the #-byte name of its memory", (MemoryName.size,)),
    ("A sender copies at most # long messages for its peer", (OUTSTANDING,)),
    ("For a peer that uses credits # receives are posted at first", (FIRST_RECEIVES,)),
    # Streams
    ("before the first is read; messages in flight from this end | # |", (Sizes().receives,)),
    ("| `sndbuf` | both | bytes of messages in flight | # |", (Sizes().sendBuffer,)),
    ("that the peer can offer for writes from this end, # to # | # |", (0, MOST_MAPPINGS, Sizes().mappings)),
    ("| `keepalive` | both | seconds between probes of an idle peer; 0 disables them | # |", (KEEPALIVE,)),
    ("a table of `mappings` entries, # of # bytes by default", (Sizes().mappings, MAPPED_BYTES)),
    # The manager
    ("at most # seconds after the first REQ, REP or LAP", (LONGEST_DELAY,)),
    ("the last # answers to SIDR_REQs are stored", (MOST_SIDR_REQUESTS,)),
    ("after the queue pair's retries, which take # timeouts", (USUAL.retryCount + 1,)),
    ("and on a software device at least # seconds", (round(ackTimeoutSeconds(PATIENT_TIMEOUT), 1),)),
    ("has an alternate path abandons a path after # seconds without an acknowledgement", (PATH_SECONDS,)),
    ("Two LAPs and one migration give # states and # transitions; # and # where unused paths can be replaced",
     (*ESTABLISHED[0][3:5], *ESTABLISHED[1][3:5])),
    ("the last back to the first path, # and #, or # and #", (*ESTABLISHED[2][3:5], *ESTABLISHED[3][3:5])),
    ("# states without alternate paths, # if a late REQ may begin a second connection, and # with one LAP",
     WHOLE),
    # Programs that share an address
    ("has a *share*, one of # numbers", (SHARES,)),
    ("Its own UDP port is # plus the share", (portOfShare(1) - 1,)),
    ("| a share: UDP port # plus the share |", (portOfShare(1) - 1,)),
    ("| ENTER | # |", (Enter.size,)),
    ("| SERVICE | # |", (ServiceNotice.size,)),
    ("or does not any more; at most # of each member |", (SERVICES,)),
    ("| MANAGEMENT | # |", (ManagementNotice.size,)),
    ("| SEEN | # |", (ProbeSeen.size,)),
    ("| PING | # |", (Ping.size,)),
    ("| PACKET | # and the packet, at most # bytes |", (ForwardedPacket.size, LONGEST_PACKET)),
    ("each device has answered, # times at most", (ROUNDS,)),
    ("from a member every # s; the coordinator returns it", (PING_SECONDS,)),
    ("leave it after two unanswered pings, # to # seconds later",
     (PING_SECONDS + FIRST_PING_SECONDS, 2 * PING_SECONDS + FIRST_PING_SECONDS)),
    ("with the next of # names (`ADDRESS/0` to `ADDRESS/#`)", (NAMES, NAMES - 1)),
)  # fmt: skip
"""Sentences of the pages with C{#} in place of numbers, and these numbers."""


def stated(sentence: str) -> tuple[float, ...]:
    """Return the numbers that the pages have in place of each C{#} of a sentence, which occurs once."""
    number = rf"([\d,]+(?:\.\d+)?|{'|'.join(WORDS)})"
    text = " ".join(word for page in PAGES for word in page.read_text().split())
    found = re.findall(re.escape(sentence).replace(r"\#", number), text)
    if len(found) != 1:
        raise AssertionError(f"the pages have {len(found)} times: {sentence}")
    texts = found if isinstance(found[0], str) else found[0]
    return tuple(WORDS.get(text) or float(text.replace(",", "")) for text in texts)


class NumberTests(SynchronousTestCase):
    """Numbers that are constants of the code; the tests of the constants are elsewhere."""

    skip = REASON

    def test_constants(self) -> None:
        """The pages have the values of the constants."""
        for sentence, values in CONSTANTS:
            with self.subTest(sentence=sentence):
                self.assertEqual(stated(sentence), values)


class MessageTests(MessagingCase):
    """Statements about C{rdma:} and C{ib:} connections."""

    skip = REASON

    def test_privateData(self) -> None:
        """Private data of a client has at most the stated number of bytes, with and without a greeting."""
        withGreeting = stated("This leaves # bytes of private data for `rdma:` clients and # for `ib:`")
        without = stated("there is no greeting, and # and # bytes are left")
        self.serve(MessageFactory(self.made))
        self.listenAt()
        for usesCredits, limits in ((True, withGreeting), (False, without)):
            terms = replace(USUAL, usesCredits=usesCredits)

            def rdma(data: bytes, terms: Any = terms) -> Any:
                return self.connectTo(terms=terms, privateData=data)

            def ib(data: bytes, terms: Any = terms) -> Any:
                return self.ask(terms, data)

            for connect, most in zip((rdma, ib), map(int, limits), strict=True):
                self.result(connect(b"x" * most)).transport.loseConnection()
                self.wait(lambda: self.served[-1].isMade)
                self.assertEqual(self.served[-1].transport.getPeer().privateData, b"x" * most)
                self.failureResultOf(connect(b"x" * (most + 1)), InvalidRequest)
        self.wait(lambda: all(each.lost for each in self.served))

    def test_producer(self) -> None:
        """A producer is paused at the stated number of waiting requests or bytes, and no earlier."""
        requests, mebibytes = stated("pauses the producer while # requests or # MiB are queued")
        client, server = self.connected()
        server.transport.pauseProducing()
        self.pause(0.1)
        for size, count in ((1, int(requests)), (1 << 18, int(mebibytes * 4))):
            producer = ProducerRecorder()
            client.transport.registerProducer(producer, True)
            while client.transport._sends.waiting or not client.transport._sends.isIdle:
                self.clock.step()
            sent = 0
            while not producer.calls:
                client.transport.sendMessage(bytes(size))
                sent += 1
            self.assertEqual(producer.calls, ["pause"])
            waiting = len(client.transport._sends.waiting)
            self.assertEqual(waiting, count, (size, sent))
            client.transport.unregisterProducer()
            server.transport.resumeProducing()
            self.wait(lambda: client.transport._sends.isIdle)
            server.transport.pauseProducing()

    def test_keepalive(self) -> None:
        """An idle connection is probed at the stated interval."""
        (seconds,) = stated("(seconds between probes of an idle peer, # by default;")
        client, _ = self.connected()
        times: list[float] = []
        pair = client.transport._pair
        post = pair.postSend

        def postSend(batch: Any) -> None:
            times.append(self.clock.seconds())
            post(batch)

        pair.postSend = postSend
        self.wait(lambda: len(times) == 3, 4 * seconds)
        for before, after in pairwise(times):
            self.assertApproximates(after - before, seconds, 0.1)

    def test_busyPeer(self) -> None:
        """A peer that acknowledges nothing is given up soon after the stated number of seconds."""
        (seconds,) = stated("a peer whose program is busy for more than # seconds is considered lost")
        self.listenAt()
        client = self.result(self.connectTo())
        self.pause(0.1)
        self.devices[1].setPortEnabled(1, False)
        begun = self.clock.seconds()
        client.transport.sendMessage(b"are you there?")
        self.wait(lambda: client.lost, seconds + 1.0)
        self.assertTrue(seconds < self.clock.seconds() - begun < seconds + 0.5)


class StreamTests(SynchronousTestCase):
    """Statements about C{rsocket:} connections."""

    skip = REASON

    def test_receiveBuffer(self) -> None:
        """Between C{rcvbuf} and twice as many bytes wait unread, and C{rcvbuf} has the stated default."""
        (half,) = map(int, stated("at most twice as many wait | # |"))
        endpoint: Any = clientFromString(None, "rsocket:192.0.2.1:7471:device=soft:timeout=2s")
        self.assertEqual(endpoint._endpoint.keywords["timeout"], 2.0)
        sizes = endpoint._options.sizes
        self.assertEqual(sizes, Sizes())
        core = RSocket(sizes, memoryview(bytearray(sizes.remote)), None)
        greeting = core.greeting(0, RKey(1))
        core.begin(greeting, greeting)
        self.assertEqual(greeting.bufferLength, half)
        for _ in range(2):
            core.arrived(immediate(ImmediateKind.DATA, half), half)
            core.outgoing()
        self.assertEqual(core.unread, 2 * half)
