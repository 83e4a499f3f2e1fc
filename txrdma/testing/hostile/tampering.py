"""Mutations of messages: the replacements of each message of a hostile host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from txrdma.kit.values import frozen
from txrdma.testing.hostile.plans import Kind, Mutation

_REMEMBERED = 64
"""Number of recorded messages of each channel, which can be repeated or sent early."""


@frozen
class Message:
    """
    A message of one channel.

    @ivar content: its bytes.
    @ivar context: work request or descriptors that belong to it.
    """

    content: bytes
    context: Any = None


Resize = Callable[[bytes], bytes]
"""A function that sets the length field in a message to the message's length."""


class Tamper:
    """
    Applies the mutations of a plan to the messages of a host.

    @ivar sent: first messages of each channel, as the host sent them.
    @ivar later: first messages of each channel without mutations, which can be sent too early.
    @ivar applied: number of applied mutations by their kind.
    """

    def __init__(
        self, mutations: Sequence[Mutation], later: dict[str, list[Message]], resize: dict[str, Resize]
    ) -> None:
        """@param resize: functions by channel; messages of other channels have no length fields."""
        self.sent: defaultdict[str, list[Message]] = defaultdict(list)
        self.later = later
        self.applied = Counter[str]()
        self._resize = resize
        self._mutations = {(each.channel, self._numberOf(each)): each for each in mutations}
        self._numbers = Counter[str]()
        self._delayed: dict[str, list[Message]] = {}

    def _numberOf(self, mutation: Mutation) -> int:
        """Return the number of the mutated message, modulo the usual number of messages of its channel."""
        return mutation.at % (len(self.later.get(mutation.channel, ())) or _REMEMBERED)

    def replaced(self, channel: str, message: Message) -> list[Message]:
        """Return the messages that are sent instead of this one, in order."""
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
        """Return the message with changed, added or removed bytes."""
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
