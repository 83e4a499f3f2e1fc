"""Reports of a run of the matrix: transcripts side by side, results as JSON, and tables in Markdown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from txrdma.testing.streams import transcript
from txrdma.testing.streams.catalogue import CHAPTERS
from txrdma.testing.streams.conversation import Conversation, DRAWN
from txrdma.testing.streams.matrix import Verdict
from txrdma.testing.streams.orders import CLIENT, SERVER
from txrdma.testing.streams.runner import ConversationRun
from txrdma.testing.streams.transcript import Entry, PROCESS

BEGIN: Final = "<!-- made by make conversations DOCS=1: {} begins -->"
END: Final = "<!-- made by make conversations DOCS=1: {} ends -->"

_WIDTH: Final = 58
_LOG_LINES: Final = 40


# Failures


def command(verdict: Verdict) -> str:
    """Return the command that repeats a conversation."""
    name = verdict.conversation.name
    which = f"DRAWN=1 FIRST={name[len(DRAWN) :]}" if name.startswith(DRAWN) else f"CONVERSATIONS={name}"
    return f"make conversations {which} ROUTE={verdict.provider.name} REACTOR={verdict.reactor}"


def failure(verdict: Verdict, logs: bool = False) -> str:
    """Return the transcripts of both ends of a failed conversation, and on request their logs."""
    conversation, ours = verdict.conversation, verdict.ours
    scripts = {CLIENT: conversation.client, SERVER: conversation.server}
    lines = [
        f"=== {conversation.name}, {verdict.provider.name}, {verdict.reactor}",
        conversation.about,
        *(f"  {end} {line}" for end, script in scripts.items() for line in script.splitlines()),
        *(f"  !! {complaint}" for complaint in verdict.complaints),
    ]
    if conversation.races:
        lines.append(
            f"  TCP has several possible outcomes: {conversation.races}. It was run {len(verdict.tcp)} times."
        )
    tcp = _closest(verdict)
    for end in ours.entries:
        lines += ["", *_beside(f"{end} over tcp", f"{end} over {verdict.provider.name}", tcp, ours, end)]
    for end, log in ours.logs.items():
        if log and logs:
            lines += ["", f"  the {end}'s log over {verdict.provider.name}:"]
            lines += [f"    {line}" for line in _printable(log).splitlines()[-_LOG_LINES:]]
    return "\n".join([*lines, "", f"  to repeat it: {command(verdict)}", ""])


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)


def _closest(verdict: Verdict) -> ConversationRun:
    """Return the run over TCP that is most similar to the route's."""
    ours = {end: [each.calls for each in view.connections] for end, view in verdict.ours.views.items()}

    def likeness(tcp: ConversationRun) -> int:
        return sum(
            [each.calls for each in view.connections] == ours.get(end) for end, view in tcp.views.items()
        )

    return max(verdict.tcp, key=likeness)


def _beside(left: str, right: str, tcp: ConversationRun, ours: ConversationRun, end: str) -> Iterator[str]:
    """Yield one end's transcripts side by side: entries of one kind in one line, marked if they differ."""
    expected, actual = (sorted(each.entries.get(end, ()), key=_connection) for each in (tcp, ours))
    texts = (list(_lines(expected)), list(_lines(actual)))
    matcher = SequenceMatcher(None, [*map(_kind, expected)], [*map(_kind, actual)], autojunk=False)
    yield _row(" ", left, right)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(range(a, b), range(c, d), strict=True):
                isSame = _isVarying(expected[one]) or expected[one].about == actual[other].about
                yield _row(" " if isSame else "|", texts[0][one], texts[1][other])
        else:
            yield from (_row("|", text, "") for text in texts[0][a:b])
            yield from (_row("|", "", text) for text in texts[1][c:d])


def _row(mark: str, left: str, right: str) -> str:
    return f"  {left[:_WIDTH]:{_WIDTH}} {mark} {right[:_WIDTH]}".rstrip()


def _connection(entry: Entry) -> int:
    """Return the sort key of an entry: its connection, since the order between connections is arbitrary."""
    return sys.maxsize if entry.kind == transcript.ENDED else entry.connection


def _kind(entry: Entry) -> tuple[int, str, str]:
    """Return the common part of entries that are shown in one line."""
    return entry.connection, entry.kind, entry.about if entry.kind == transcript.DOES else ""


def _isVarying(entry: Entry) -> bool:
    return entry.kind in (transcript.LISTENING, transcript.MADE)


def _lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each entry as text, with seconds since the first."""
    begun = min((entry.at for entry in entries), default=0.0)
    for entry in entries:
        about = f"{entry.bytes:,} bytes" if entry.kind in (transcript.DATA, transcript.WROTE) else entry.about
        number = "" if entry.connection in (PROCESS, 0) else f"#{entry.connection} "
        yield f"{entry.at - begun:8.3f}  {number}{entry.kind} {about}"


# Results


def results(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the results of a run as data for JSON."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": ".".join(map(str, sys.version_info[:3])),
        "twisted": version("Twisted"),
        "conversations": [
            {
                "conversation": verdict.conversation.name,
                "route": verdict.provider.name,
                "reactor": verdict.reactor,
                "outcome": "passed" if verdict.passed else "failed",
                "complaints": [str(complaint) for complaint in verdict.complaints],
                "seconds": round(verdict.ours.seconds, 3),
                "tcp": sorted({_views(tcp) for tcp in verdict.tcp}),
                "ours": _views(verdict.ours),
            }
            for verdict in sorted(verdicts, key=_order)
        ],
    }


def _views(run: ConversationRun) -> str:
    return " / ".join(f"{end}: {view}" for end, view in sorted(run.views.items()))


def _order(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.conversation.name, verdict.provider.name, verdict.reactor


# Tables


def table(verdicts: Sequence[Verdict]) -> str:
    """
    Return Markdown: for each chapter its conversations, and the reactors on which each route passes.

    C{all} stands for all reactors of the run.
    """
    routes = list(dict.fromkeys(verdict.provider.name for verdict in sorted(verdicts, key=_order)))
    reactors = list(dict.fromkeys(verdict.reactor for verdict in verdicts))
    lines = [f"Reactors: {', '.join(reactors)}.", ""]
    for chapter, conversations in CHAPTERS.items():
        played = [each for each in conversations if any(v.conversation is each for v in verdicts)]
        if not played:
            continue
        lines += [f"### {chapter.capitalize()}", ""]
        lines += ["| Conversation | " + " | ".join(routes) + " |", "|---|" + "---|" * len(routes)]
        for each in played:
            cells = [
                _cell([v for v in verdicts if v.conversation is each and v.provider.name == r], reactors)
                for r in routes
            ]
            lines.append(f"| **{each.name}**<br>{each.about} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(verdicts: Sequence[Verdict], reactors: Sequence[str]) -> str:
    passed = [verdict.reactor for verdict in verdicts if verdict.passed]
    if set(passed) == set(reactors):
        return "all"
    failed = [verdict.reactor for verdict in verdicts if not verdict.passed]
    parts = [", ".join(passed)] if passed else []
    if failed:
        parts.append(f"**not as over TCP:** {', '.join(failed)}")
    return "; ".join(parts) or "-"


def differences(conversations: Sequence[Conversation]) -> str:
    """Return Markdown: declared differences of routes from TCP, by reason."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for conversation in conversations:
        for each in conversation.unlike:
            names = found.setdefault((each.why, each.routes), [])
            if conversation.name not in names:
                names.append(conversation.name)
    lines = ["| Where | What is not the same, and why | Conversations |", "|---|---|---|"]
    for (why, routes), names in found.items():
        lines.append(f"| {', '.join(routes)} | {why[0].upper()}{why[1:]}. | {', '.join(names)} |")
    return "\n".join([*lines, ""])


def replaceIn(page: Path, what: str, text: str) -> None:
    """
    Replace the text between its markers on a page.

    @raise ValueError: the page has no such markers.
    """
    begin, end = BEGIN.format(what), END.format(what)
    before, found, rest = page.read_text().partition(begin)
    _, foundEnd, after = rest.partition(end)
    if not found or not foundEnd:
        raise ValueError(f"{page} has no marks for {what}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")
