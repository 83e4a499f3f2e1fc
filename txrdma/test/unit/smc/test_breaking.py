"""A link that breaks while it processes messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any
from unittest import SkipTest
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import QPN
from txrdma.iba.verbs import Completion, CompletionOpcode, Status
from txrdma.smc.group import link as linkModule
from txrdma.smc.group.link import Link
from txrdma.smc.wire.cdc import CDC, CDC_LENGTH, CDC_TYPE


class BreakingTests(SynchronousTestCase):
    """Messages of a broken link are processed in order."""

    def test_order(self) -> None:
        """If a link breaks while it processes a batch of messages, the rest of it precedes later messages."""
        if not (linkModule.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes have no objects without their fields")
        sequences: list[int] = []
        link: Any = Link.__new__(Link)
        later = [self.completions(3, 5)]

        def poll() -> bool:
            batch = later.pop() if later else []
            link._receivesCompleted(batch)
            return bool(batch)

        link.group, link.groups, link._reactorUse = Mock(), Mock(isStopping=False), Mock(isDue=False)
        link._queue = Mock(isBusy=False, isOver=False, dirty=["a flow"])
        settle = Mock(side_effect=lambda: link.broken("a message was refused"))
        link.scheduler = Mock(clock=Mock(side_effect=count()), settle=settle)
        link._flows = {7: Mock(received=lambda message: sequences.append(message[1]))}
        link._receives = b"".join(
            CDC(type=CDC_TYPE, length=CDC_LENGTH, sequence=number, token=7).encode() for number in range(5)
        )
        link._byOffset = dict.fromkeys(range(0, 5 * CDC_LENGTH, CDC_LENGTH))
        link._used, link._reader, link.isBreaking, link._rest = [], Mock(poll=poll), False, iter(())
        link._receivesCompleted(self.completions(0, 3))
        self.assertEqual(sequences, [0, 1, 2, 3, 4])
        link.group.linkBroken.assert_called_once_with(link, "a message was refused")

    def completions(self, first: int, last: int) -> Sequence[Completion]:
        """Return the completions of these receives."""
        return [
            Completion(number * CDC_LENGTH, Status.SUCCESS, CompletionOpcode.RECEIVE, QPN(0), CDC_LENGTH)
            for number in range(first, last)
        ]
