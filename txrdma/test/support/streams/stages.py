"""The stage of a test process, with one forkserver for all suites that play conversations."""

from __future__ import annotations

from functools import lru_cache

from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.matrix import playTCP
from txrdma.testing.streams.stage import Performance, Stage


@lru_cache(1)
def theStage() -> Stage:
    """Return the stage, which closes with the process."""
    return Stage()


@lru_cache(512)
def overTCP(conversation: Conversation, reactor: str) -> tuple[Performance, ...]:
    """Return TCP's performance, played once for all routes."""
    return tuple(playTCP(theStage(), conversation, reactor))
