"""Runs that were not played, but are written line by line as the runner records them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from txrdma.testing.streams.conversation import Conversation
from txrdma.testing.streams.orders import CLIENT, SERVER
from txrdma.testing.streams.provider import Provider, SHARED_MEMORY, TCP
from txrdma.testing.streams.runner import ConversationRun
from txrdma.testing.streams.texts import Text
from txrdma.testing.streams.transcript import Entry

CONVERSATION = Conversation("written", "Written down, not played.", client="made: lose", server="lost: stop")

ORDINARY_CLIENT = ("made", "wrote 5", "lost ConnectionDone", "- ended exit 0")
ORDINARY_SERVER = ("made", "data 5", "lost ConnectionDone", "- ended exit 0")


def data(length: int, writer: str = CLIENT) -> str:
    """Return the entry of a protocol that has received so many bytes of a text."""
    return f"data {length} {zlib.crc32(Text(writer).take(0, length)):08x}"


def entries(lines: Sequence[str], provider: Provider, writer: str) -> list[Entry]:
    """
    Return entries of an end, a second apart.

    A line that begins with a hyphen is about the process, with a number and a sign C{#} about that
    connection, and others about the first one. C{made} and C{data} get the arguments that the end would have
    added, unless present.
    """
    found = []
    for second, line in enumerate(lines):
        connection, words = 0, line
        if line.startswith("- "):
            connection, words = -1, line[2:]
        elif "#" in line:
            number, _, words = line.partition("# ")
            connection = int(number)
        kind, _, about = words.partition(" ")
        if kind == "made" and not about:
            about = provider.served
        elif kind == "data" and " " not in about:
            _, _, about = data(int(about), writer).partition(" ")
        found.append(Entry(float(second), connection, kind, about, float(second)))
    return found


def written(
    client: Sequence[str] = ORDINARY_CLIENT,
    server: Sequence[str] = ORDINARY_SERVER,
    provider: Provider = SHARED_MEMORY,
    conversation: Conversation = CONVERSATION,
) -> ConversationRun:
    """Return a run with these lines."""
    served = {CLIENT: entries(client, provider, SERVER), SERVER: entries(server, provider, CLIENT)}
    return ConversationRun(conversation, provider, "epoll", served, {CLIENT: "", SERVER: ""}, 1.0)


def overTCP(
    client: Sequence[str] = ORDINARY_CLIENT,
    server: Sequence[str] = ORDINARY_SERVER,
    conversation: Conversation = CONVERSATION,
) -> ConversationRun:
    """Return the same run over TCP."""
    return written(client, server, TCP, conversation)


def later(run: ConversationRun, end: str, seconds: float) -> ConversationRun:
    """Return the same run with an end that is notified so much later."""
    found = [
        replace(entry, at=entry.at + seconds) if entry.kind == "lost" else entry for entry in run.entries[end]
    ]
    return replace(run, entries={**run.entries, end: found})
