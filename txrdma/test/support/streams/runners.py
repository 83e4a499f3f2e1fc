"""The runner of a test process, with one forkserver for all suites that play conversations."""

from __future__ import annotations

from functools import lru_cache

from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.matrix import playTCP
from txrdma.testing.streams.runner import ConversationRun, ConversationRunner


@lru_cache(1)
def theRunner() -> ConversationRunner:
    """Return the runner, which closes with the process."""
    return ConversationRunner()


@lru_cache(512)
def overTCP(conversation: Conversation, reactor: str) -> tuple[ConversationRun, ...]:
    """Return TCP's run, played once for all routes."""
    return tuple(playTCP(theRunner(), conversation, reactor))
