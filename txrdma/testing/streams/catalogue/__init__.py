"""
The conversations that compare streams with TCP, by chapters.

To add one, write its name, a sentence, and its two scripts into its chapter
(L{txrdma.testing.streams.conversation.conversations}). The expected result is not a part of it, since TCP
defines that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from txrdma.testing.streams.catalogue import closing, deaths, halves, programs, readers, sizes, wrapped
from txrdma.testing.streams.conversation import Conversation

CHAPTERS: dict[str, tuple[Conversation, ...]] = {
    "sizes": sizes.CONVERSATIONS,
    "closing": closing.CONVERSATIONS,
    "halves": halves.CONVERSATIONS,
    "readers": readers.CONVERSATIONS,
    "deaths": deaths.CONVERSATIONS,
    "programs": programs.CONVERSATIONS,
    "wrapped": wrapped.CONVERSATIONS,
}
"""All conversations, by chapter."""


def everyConversation() -> Iterator[Conversation]:
    """Yield all conversations of all chapters, in their order."""
    for chapter in CHAPTERS.values():
        yield from chapter


def chosen(patterns: Sequence[str]) -> list[Conversation]:
    """
    Return the conversations whose name or chapter matches a file name pattern; by default all of them.

    @raise ValueError: a pattern matches nothing.
    """
    found: dict[str, Conversation] = {}
    for pattern in patterns or ("*",):
        matching = [
            conversation
            for chapter, conversations in CHAPTERS.items()
            for conversation in conversations
            if fnmatchcase(conversation.name, pattern) or fnmatchcase(chapter, pattern)
        ]
        if not matching:
            raise ValueError(f"no conversation matches {pattern}")
        found.update((each.name, each) for each in matching)
    return [each for each in everyConversation() if each.name in found]
