"""
Comparison of the events of protocols over another stream with those over TCP.

Because of races, TCP may have several outcomes of a conversation, and each is accepted. All bytes that TCP
delivers must be delivered, in order and with the same content; additional bytes are accepted. This module
runs nothing; it compares recorded runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txrdma.testing.streams import transcript
from txrdma.testing.streams.conversation import Outcome, Unlike
from txrdma.testing.streams.orders import CLIENT, SERVER
from txrdma.testing.streams.runner import ConversationRun
from txrdma.testing.streams.texts import Checksum
from txrdma.testing.streams.transcript import Entry, PROCESS, PRODUCER_STOPPED, Seen, View

SLACK: Final = 5.0
"""Seconds by which an end may be later than over TCP, since the machine may be busy."""

_PEER: Final = {CLIENT: SERVER, SERVER: CLIENT}
_ONCE: Final = (transcript.MADE, transcript.READ_LOST, transcript.WRITE_LOST, transcript.LOST)


@dataclass(frozen=True, slots=True)
class Complaint:
    """
    A difference or fault that is not accepted.

    @ivar end: end that reported it.
    @ivar what: description.
    """

    end: str
    what: str

    def __str__(self) -> str:
        return f"{self.end}: {self.what}"


def complaintsAboutTCP(tcp: Sequence[ConversationRun]) -> list[Complaint]:
    """Return complaints about the reference: a conversation that TCP does not finish cannot be compared."""
    return [
        complaint
        for each in tcp
        for complaint in (*_unfinished(each), *_brokenRules(each), *_misserved(each))
    ]


def complaints(tcp: Sequence[ConversationRun], ours: ConversationRun) -> list[Complaint]:
    """
    Return the complaints about a run: all differences from those over TCP.

    @param tcp: at least one run of the same conversation.
    """
    found = [*_misserved(ours), *_unfinished(ours)]
    accepted = {str(each) for run in tcp for each in _brokenRules(run)}
    found += [each for each in _brokenRules(ours) if str(each) not in accepted]
    # On a busy machine the processes wait for processors, which is no fault of the transport.
    late = SLACK * ours.provider.patience + sum(view.waited for view in ours.views.values())
    for end, view in ours.views.items():
        judges = [run.views[end] for run in tcp if end in run.views]
        unlike = ours.conversation.unlikeOn(ours.provider.name, end)
        conversation = ours.conversation
        also, enough = conversation.alsoFor(end), conversation.enoughFor(end) if end in _PEER else None
        isLeft = end in _PEER and conversation.enoughFor(_PEER[end]) is not None
        allowed = _Allowed(also, unlike, enough, isLeft, late)
        found += [Complaint(end, what) for what in _differences(judges, view, allowed)]
    for end, view in ours.views.items():
        usual = max((len(each.views[end].errors) for each in tcp if end in each.views), default=0)
        if len(view.errors) > usual:
            found.append(Complaint(end, f"logged errors: {'; '.join(view.errors)}"))
    return list(dict.fromkeys(found))


# Differences between one process and the same process over TCP


@dataclass(frozen=True, slots=True)
class _Allowed:
    """
    The differences from TCP that a conversation accepts at an end.

    @ivar also: further outcomes that are possible over TCP.
    @ivar unlike: declared differences of the route.
    @ivar enough: number of bytes after which the end leaves; the number of further received bytes is random.
    @ivar isLeft: whether the peer leaves before it has received everything.
    @ivar late: seconds by which an end may be later.
    """

    also: Sequence[Outcome]
    unlike: Sequence[Unlike]
    enough: int | None
    isLeft: bool
    late: float


def _differences(tcp: Sequence[View], ours: View, allowed: _Allowed) -> Iterator[str]:
    if ours.ended == transcript.OUT_OF_TIME:
        return  # this is reported already, and causes other differences
    if ours.ended not in {view.ended for view in tcp}:
        yield f"the process ended by {ours.ended}, over TCP by {_either(view.ended for view in tcp)}"
    if ours.failures not in {view.failures for view in tcp}:
        yield f"connecting failed {_failures(ours)}, over TCP {_either(map(_failures, tcp))}"
    judges = [view for view in tcp if len(view.connections) == len(ours.connections)]
    if not judges:
        yield f"{len(ours.connections)} connections, over TCP {_either(str(len(v.connections)) for v in tcp)}"
        return
    found = Counter(
        what
        for number, seen in enumerate(ours.connections)
        for what in _seenOtherwise([view.connections[number] for view in judges], seen, allowed)
    )
    many = len(ours.connections)
    yield from (
        f"{count} of {many} connections {what}" if many > 1 else what for what, count in found.items()
    )
    lasted = max(view.lasted for view in tcp)
    if ours.lasted > lasted + allowed.late and not any(each.later for each in allowed.unlike):
        yield f"the process ended after {ours.lasted:.1f} s, over TCP after {lasted:.1f} s"


def _seenOtherwise(tcp: Sequence[Seen], ours: Seen, allowed: _Allowed) -> Iterator[str]:
    alike = [seen for seen in tcp if seen.calls == ours.calls or (allowed.isLeft and _hasLess(seen, ours))]
    also = [each for each in allowed.also if each.calls == ours.calls]
    excused = [each for each in allowed.unlike if not each.calls or each.calls == ours.calls]
    if not alike and not also and not any(each.calls for each in excused):
        yield f"saw {_calls(ours)}; over TCP {_either(map(_calls, tcp))}"
    judges = alike or list(tcp)
    least = min(seen.received for seen in judges)
    if also and not alike:
        least = max(each.received for each in also)
    if allowed.enough is not None:
        least = min(least, allowed.enough)
    if ours.received < least and not any(each.fewer for each in excused):
        yield f"received {ours.received:,} bytes; over TCP {_either(f'{seen.received:,}' for seen in judges)}"
    lasted = [seen.lasted for seen in judges if seen.lasted is not None]
    if ours.lasted is not None and lasted and not any(each.later for each in excused):
        if ours.lasted > max(lasted) + allowed.late:
            yield f"lost the connection after {ours.lasted:.1f} s, over TCP after {max(lasted):.1f} s"


def _hasLess(tcp: Seen, ours: Seen) -> bool:
    """
    Return whether the calls differ only because the producer had not written everything.

    How much it writes before its peer leaves depends on the sizes of the system's buffers.
    """
    finished = tuple(call for call in ours.calls if call != PRODUCER_STOPPED)
    return ours.written < tcp.written and finished == tcp.calls != ours.calls


def _either(those: Iterator[str] | map[str]) -> str:
    return " or ".join(sorted(set(those)))


def _calls(seen: Seen) -> str:
    return ", ".join(seen.calls) or "nothing"


def _failures(view: View) -> str:
    return f"with {', '.join(view.failures)}" if view.failures else "never"


# Faults of one run


def _unfinished(run: ConversationRun) -> Iterator[Complaint]:
    for end, view in run.views.items():
        if view.ended == transcript.OUT_OF_TIME:
            yield Complaint(end, f"had not ended after {run.seconds:.0f} s")
    if len(run.views) < 1 + bool(run.conversation.server):
        yield Complaint(CLIENT, "did not begin, because the server did not listen")


def _misserved(run: ConversationRun) -> Iterator[Complaint]:
    for end, provider in run.servedBy.items():
        for entry in run.entries.get(end, ()):
            if entry.kind == transcript.MADE and entry.about != provider.served:
                yield Complaint(end, f"was served by {entry.about} instead of {provider.served}")


def _brokenRules(run: ConversationRun) -> Iterator[Complaint]:
    """Yield violations of rules that every transport must follow, regardless of TCP's results."""
    for end, entries in run.entries.items():
        if end not in _PEER:
            continue
        for entry in entries:
            if entry.kind == transcript.BROKEN:
                yield Complaint(end, entry.about)
        for number in {entry.connection for entry in entries} - {PROCESS}:
            own = [entry for entry in entries if entry.connection == number]
            yield from (Complaint(end, what) for what in _disorder(own))
            yield from (Complaint(end, what) for what in _otherText(own, _PEER[end]))
        yield from (Complaint(end, what) for what in _moreThanWritten(run.entries, end))


def _disorder(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield calls of one protocol that are repeated, or in a wrong order."""
    calls = [each for each in entries if each.kind in (*_ONCE, transcript.DATA)]
    kinds = [each.kind for each in calls]
    for kind in _ONCE:
        if kinds.count(kind) > 1:
            yield f"{kind} came {kinds.count(kind)} times"
    if kinds and kinds[0] != transcript.MADE:
        yield f"{kinds[0]} came before the connection was made"
    for last in (transcript.LOST, transcript.READ_LOST):
        if last in kinds:
            behind = kinds[kinds.index(last) + 1 :]
            late = behind if last == transcript.LOST else [each for each in behind if each == transcript.DATA]
            if late:
                yield f"{', '.join(late)} came behind {last}"


def _otherText(entries: Sequence[Entry], writer: str) -> Iterator[str]:
    """Check that the received data is the data that the other end has written, in order."""
    checksum = Checksum(writer)
    for entry in entries:
        if entry.kind == transcript.DATA:
            length, crc = entry.about.split()
            if int(length) < checksum.length:
                yield f"{length} bytes in all, behind {checksum.length}"
                return
            if checksum.upTo(int(length)) != int(crc, 16):
                yield f"the first {length} bytes are not those that the {writer} wrote"
                return


def _moreThanWritten(entries: Mapping[str, Sequence[Entry]], end: str) -> Iterator[str]:
    received = _most(entries.get(end, ()), transcript.DATA)
    written = _most(entries.get(_PEER[end], ()), transcript.WROTE)
    if received > written:
        yield f"received {received} bytes, but only {written} were written"


def _most(entries: Sequence[Entry], kind: str) -> int:
    return max((entry.bytes for entry in entries if entry.kind == kind), default=0)
