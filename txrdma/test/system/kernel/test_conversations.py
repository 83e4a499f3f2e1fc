"""
Conversations between two processes, each with a kernel device at its end of a wire, compared with TCP.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.runners import overTCP, theRunner
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.testing.streams.catalogue import chosen
from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.matrix import judged, USUAL_REACTOR
from txrdma.testing.streams.provider import Provider
from txrdma.testing.streams.report import failure

BOXES = (Box(mtu=4200, timeout=600),)

VERBS = Provider(
    "verbs",
    r"smc:0:interface=127.0.0.1:device=pyverbs\:rxe1:timeout=60:rcvbuf=512K",
    r"smc:127.0.0.1:{port}:device=pyverbs\:rxe0:timeout=60:rcvbuf=512K",
    "SMC-R verbs",
    imports=("txrdma.test.system.kernel.patient",),
    patience=10.0,
)
"""
C{smc:} over the kernel's RoCE devices, by pyverbs.

The automatic ring has 256 KiB where memory is pinned, which is less than some conversations write at once.
"""

NAMES = (
    "client-writes-5",
    "both-write-5MB",
    "both-close-at-once",
    "server-aborts",
    "client-half-closes",
    "half-closes-with-a-push-producer",
    "paused-while-300kB-comes-and-the-peer-exits",
    "stops-inside-dataReceived",
    "writes-300kB-then-stop",
    "writes-300kB-then-kill",
    "forks",
    "request-and-file",
    "tls-client-closes",
)
"""Some conversations of each chapter: an emulated processor needs twenty seconds for one."""


class ConversationTests(SynchronousTestCase):
    """Both ends observe the same as over TCP."""

    skip = OUTSIDE
    witness = Witness("smc: over pyverbs", "smc: over pyverbs", "conversations as over TCP")

    def converse(self, conversation: Conversation) -> None:
        """Play a conversation, and compare it with TCP."""
        runner = theRunner()
        ours = runner.play(conversation, VERBS, USUAL_REACTOR)
        verdict = judged(runner, overTCP(conversation, USUAL_REACTOR), ours)
        record(
            "bytes received", sum(seen.received for view in ours.views.values() for seen in view.connections)
        )
        if not verdict.passed:
            self.fail(failure(verdict))


def _test(conversation: Conversation) -> Callable[[ConversationTests], None]:
    def test(self: ConversationTests) -> None:
        self.converse(conversation)

    test.__doc__ = conversation.about
    return test


for each in chosen(NAMES):
    method = _test(each)
    method.__name__ = f"test_{each.name.replace('-', '_')}"
    setattr(ConversationTests, method.__name__, method)
