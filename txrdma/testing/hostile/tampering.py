"""
Mutations of messages: what a hostile host sends in the place of each of its messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from txrdma.kit.values import frozen
from txrdma.testing.hostile.plans import Kind, Mutation

_REMEMBERED = 64
"""Messages of each channel that can be sent again, or early."""


@frozen
class Message:
    """
    A message of one channel.

    @ivar content: its bytes.
    @ivar context: what else belongs to it: a work request, or descriptors.
    """

    content: bytes
    context: Any = None


Resize = Callable[[bytes], bytes]
"""A function that makes the length that stands in a message the message's length."""


class Tamper:
    """
    Applies the mutations of a plan to the messages of a host.

    @ivar sent: the first messages of each channel, as the host sent them.
    @ivar later: such messages of a simulation without mutations: those that are sent too early.
    @ivar applied: how many mutations were applied, by their kind.
    """

    def __init__(
        self, mutations: Sequence[Mutation], later: dict[str, list[Message]], resize: dict[str, Resize]
    ) -> None:
        """
        @param resize: by channel; a channel without this has no lengths in its messages.
        """
        self.sent: defaultdict[str, list[Message]] = defaultdict(list)
        self.later = later
        self.applied = Counter[str]()
        self._resize = resize
        self._mutations = {(each.channel, self._numberOf(each)): each for each in mutations}
        self._numbers = Counter[str]()
        self._delayed: dict[str, list[Message]] = {}

    def _numberOf(self, mutation: Mutation) -> int:
        """The number of the message that is mutated: of those that the channel usually has."""
        return mutation.at % (len(self.later.get(mutation.channel, ())) or _REMEMBERED)

    def replaced(self, channel: str, message: Message) -> list[Message]:
        """The messages that are sent in the place of this one, in order."""
        number = self._numbers[channel]
        self._numbers[channel] += 1
        earlier = self.sent[channel]
        if len(earlier) < _REMEMBERED:
            earlier.append(message)
        mutation = self._mutations.get((channel, number))
        delayed = self._delayed.pop(channel, [])
        if mutation is None:
            return [message, *delayed]
        self.applied[mutation.kind.name] += 1
        if mutation.kind is Kind.SWAPPED:
            self._delayed[channel] = [message]
            return delayed
        return [*self._mutated(mutation, message, number), *delayed]

    def _mutated(self, mutation: Mutation, message: Message, number: int) -> list[Message]:
        kind, count = mutation.kind, mutation.count
        if kind is Kind.NEVER:
            return []
        if kind is Kind.TWICE:
            return [message, message]
        if kind is Kind.MANY:
            return [message] * count
        if kind is Kind.AGAIN:
            earlier = self.sent[mutation.channel]
            return [message, earlier[max(0, min(number, len(earlier) - 1) - count)]]
        if kind is Kind.EARLY:
            later = self.later.get(mutation.channel, [])
            return [*later[number + count : number + count + 1], message]
        return [self._altered(mutation, message)]

    def _altered(self, mutation: Mutation, message: Message) -> Message:
        """The message with other bytes, of which there may be more or less."""
        content, offset, count = message.content, mutation.offset, mutation.count
        if mutation.kind is Kind.LONGER:
            content += bytes((mutation.value,)) * count
        elif mutation.kind is Kind.SHORTER:
            content = content[: max(0, len(content) - count)]
        else:
            offset %= len(content) or 1
            end = min(len(content), offset + count)
            content = content[:offset] + bytes((mutation.value,)) * (end - offset) + content[end:]
        resize = self._resize.get(mutation.channel)
        if resize is not None and mutation.kind is not Kind.CHANGED and mutation.value % 2:
            content = resize(content)
        return replace(message, content=content)
