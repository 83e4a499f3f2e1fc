"""
Conversations between two processes observe the same over other streams as over C{tcp:}: the quick ones.

C{make conversations} plays all of them. A failure shows what both ends observed, side by side. Conversations
mostly wait, so each test plays several at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.streams.runners import theRunner
from txrdma.testing.streams.catalogue import everyConversation
from txrdma.testing.streams.conversation import Conversation, Via
from txrdma.testing.streams.matrix import Matrix, USUAL_REACTOR, Verdict
from txrdma.testing.streams.provider import BTL, Provider, ROCEV2, RSOCKET, SHARED_MEMORY
from txrdma.testing.streams.report import failure

try:
    from twisted.internet import ssl
except ImportError:
    ssl = None  # type: ignore[assignment]  # conversations with TLS are left out

_AT_ONCE = 8
"""Number of conversations in a test."""


class _Conversing(SynchronousTestCase):
    """Conversations, each over all routes."""

    providers: tuple[Provider, ...]
    slowBecause = "Each conversation starts two processes, and waits for everything in transit."

    def converse(self, conversations: Sequence[Conversation]) -> None:
        """Play conversations over TCP and over the routes, and compare."""
        verdicts: list[Verdict] = []
        matrix = Matrix(conversations, self.providers, [USUAL_REACTOR], isWhole=True)
        matrix.play(theRunner(), verdicts.append)
        self.assertEqual(len(verdicts), matrix.count)
        failures = [failure(each) for each in verdicts if not each.passed]
        if failures:
            self.fail("\n\n".join(failures))


class MostTests(_Conversing):
    """Conversations over SMC: between processes of one host, and over software RoCE."""

    providers = (SHARED_MEMORY, ROCEV2)


class EverywhereTests(_Conversing):
    """Representative conversations: over SMC, rsockets and the byte transfer layer."""

    providers = (SHARED_MEMORY, ROCEV2, RSOCKET, BTL)


def _test(conversations: Sequence[Conversation]) -> Callable[[_Conversing], None]:
    def test(self: _Conversing) -> None:
        self.converse(conversations)

    test.__doc__ = f"The conversations {', '.join(each.name for each in conversations)}."
    return test


def _addTests() -> None:
    quick = [each for each in everyConversation() if each.isQuick and (ssl or each.via is not Via.TLS)]
    for case in (MostTests, EverywhereTests):
        wanted = [each for each in quick if each.isEverywhere == (case is EverywhereTests)]
        size = _AT_ONCE * 2 // len(case.providers)
        for begin in range(0, len(wanted), size):
            conversations = wanted[begin : begin + size]
            method = _test(conversations)
            method.__name__ = f"test_{conversations[0].name.replace('-', '_')}_and_others"
            setattr(case, method.__name__, method)


_addTests()
