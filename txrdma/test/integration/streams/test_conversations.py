"""
Conversations between two processes see over other streams what they see over C{tcp:}: the quick ones.

C{make conversations} plays all of them. A failure shows what both ends saw over both, beside each other.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.stages import overTCP, theStage
from txrdma.testing.streams.catalogue import everyConversation
from txrdma.testing.streams.conversation import Conversation, Way
from txrdma.testing.streams.matrix import judged, USUAL_REACTOR
from txrdma.testing.streams.provider import BTL, Provider, ROCEV2, RSOCKET, SHARED_MEMORY
from txrdma.testing.streams.report import failure

try:
    from twisted.internet import ssl
except ImportError:
    ssl = None  # type: ignore[assignment]  # conversations with TLS are skipped


class _Conversing(SynchronousTestCase):
    """Each quick conversation, over one route."""

    provider: Provider
    reactor = USUAL_REACTOR

    def converse(self, conversation: Conversation) -> None:
        """Play it, and compare."""
        if conversation.way is Way.TLS and ssl is None:
            self.skipTest("TLS is not installed")
        stage = theStage()
        ours = stage.play(conversation, self.provider, self.reactor)
        verdict = judged(stage, overTCP(conversation, self.reactor), ours)
        if not verdict.passed:
            self.fail(failure(verdict))


class SharedMemoryTests(_Conversing):
    """Between processes of one host."""

    provider = SHARED_MEMORY


class RoCETests(_Conversing):
    """By software RoCE over UDP."""

    provider = ROCEV2


class RSocketTests(_Conversing):
    """By rsockets, between processes of one host: those that stand for the others."""

    provider = RSOCKET


class BTLTests(_Conversing):
    """By the byte transfer layer, between processes of one host: those that stand for the others."""

    provider = BTL


def _test(conversation: Conversation) -> Callable[[_Conversing], None]:
    def test(self: _Conversing) -> None:
        self.converse(conversation)

    test.__doc__ = conversation.about
    return test


def _addTests() -> None:
    for conversation in everyConversation():
        if conversation.isQuick:
            name = f"test_{conversation.name.replace('-', '_')}"
            cases: tuple[type[_Conversing], ...] = (SharedMemoryTests, RoCETests)
            if conversation.isEverywhere:
                fewer = (RSocketTests, BTLTests)
                cases += tuple(case for case in fewer if conversation.name not in case.provider.cannot)
            for case in cases:
                method = _test(conversation)
                method.__name__ = name
                setattr(case, name, method)


_addTests()
