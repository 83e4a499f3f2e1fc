"""Conversations whose processes end: in order, by signals, or abruptly; with data written or unread."""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.testing.streams.conversation import Conversation, conversations, ROCE, Unlike

_SYSTEM = (
    "the system closes the TCP connections of a process that has ended, and delivers their queued data; a "
    "queue pair ends without a message. The peer detects that, but cannot know whether data is missing"
)


def vanished(end: str) -> tuple[Unlike, ...]:
    """Declare the calls that may occur over RoCE at an end whose peer ends abruptly."""
    return (Unlike(ROCE, end, _SYSTEM, calls=("made", "lost ConnectionLost"), fewer=True),)


_FLUSHED = Unlike(
    (*ROCE, "shared-memory"),
    "client",
    "an end that closes and stops its reactor gets `ConnectionDone`, because all written data is delivered; "
    "Twisted's TCP drops unsent data when the reactor stops, and reports `ConnectionLost`",
    calls=("made", "lost ConnectionDone"),
)

_UNREAD = Unlike(
    ("shared-memory",),
    "client",
    "the system resets the TCP connection of a process that is killed with unread data, and closes others in "
    "order. How far a killed process has read in shared memory is unknown: received data counts as read",
    calls=("made", "lost ConnectionDone"),
)

_PAUSED = Unlike(
    (*ROCE, "shared-memory"),
    "client",
    "a paused protocol gets `ConnectionLost` when its reactor stops, as others do; Twisted has removed the "
    "socket of a paused TCP connection from the reactor, and reports nothing unless bytes remain to be sent",
    calls=("made", "lost ConnectionLost"),
)

_WAYS = {
    "stop": "stops its reactor",
    "term": "is ended by SIGTERM",
    "kill": "is ended by SIGKILL",
    "exit": "ends by os._exit",
}
_WORDLESS = ("kill", "exit")


_AFTER_WRITING = """
writes-5-then-{via} (quick)
    The client writes 5 bytes and {words} one reactor iteration later.
    client made: write 5; turn; {via}
    server lost: stop
    unlike client-gone
writes-300kB-then-{via} (quick, everywhere)
    The client writes 300 kB and {words} when the data is sent.
    client made: write 300kB; settle; {via}
    server lost: stop
    unlike client-gone
writes-5MB-then-{via}
    The client writes 5 MB and {words} one iteration later: what the system has accepted arrives.
    client made: write 5MB; turn; {via}
    server lost: stop
    races the system decides how much it accepts at a time
    unlike client-gone
writes-and-in-this-turn-{via}
    The client writes 300 kB and {words} in the same reactor iteration.
    client made: write 300kB; {via}
    server lost: stop
    races how much is sent before the end varies
    unlike client-gone
unread-then-{via} (quick)
    The server has paused when the client writes 300 kB and {words}; then it reads.
    client made: write 300kB; settle; {via}
    server made: pause; await peer-ended; settle; resume
    unlike client-gone
"""


def _endsAfterWriting() -> Iterator[Conversation]:
    for via, words in _WAYS.items():
        gone = vanished("server") if via in _WORDLESS else ()
        yield from conversations(_AFTER_WRITING.format(via=via, words=words), {"client-gone": gone})


CONVERSATIONS = (
    *_endsAfterWriting(),
    *conversations(
        """
stops-inside-dataReceived (quick, everywhere)
    The client stops its reactor inside dataReceived after reading everything.
    client received 5: stop
    server made: write 5
answers-and-stops-inside-dataReceived (quick)
    The client answers, closes and stops its reactor inside dataReceived.
    client received 5: write 5; lose; stop
    server made: write 5
    races the answer may or may not be sent before the reactor stops
    unlike flushed
stops-while-more-comes (quick)
    The client stops its reactor inside dataReceived while the server's producer writes.
    client received 1kB: stop
    server made: push 20MB
    races the kernel sends a reset if data is unread when the process ends
    also server made, stop-producing, lost ConnectionLost
closes-and-stops (quick)
    The client writes, closes, and stops its reactor without waiting for connectionLost.
    client made: write 300kB; lose; stop
    server lost: stop
    races how much is sent before the end varies
    unlike flushed
paused-then-stop (quick, everywhere)
    The client has paused when it stops its reactor.
    client made: pause; settle; stop
    server lost: stop
    unlike paused
paused-then-term (quick)
    The client has paused inside dataReceived, answers, and is ended by SIGTERM when the answer is sent.
    client received 5: pause; turn; write 5; term
    server made: write 5
    unlike paused
paused-and-writes-then-stop (quick)
    The client has paused when it writes and stops its reactor in the same iteration.
    client made: pause; settle; write 5; stop
    server lost: stop
idle-then-kill (quick, everywhere)
    An idle client is ended by SIGKILL.
    client made: settle; kill
    server lost: stop
    unlike client-gone
idle-server-then-kill (quick)
    An idle server is ended by SIGKILL.
    client lost: stop
    server made: settle; kill
    unlike server-gone
idle-then-term (quick)
    An idle client is ended by SIGTERM.
    client made: settle; term
    server lost: stop
idle-server-then-term (quick)
    A server is ended by SIGTERM when it has answered, while its client waits for more.
    client made: write 300
    server received 300: write 300kB; settle; term
many-connections-then-stop
    The client writes on twenty concurrent connections and stops its reactor.
    client made: again until 20; write 300kB; settle; wait 3; stop
    server lost: stop after 20
many-connections-then-kill
    The client writes on twenty concurrent connections and is killed.
    client made: again until 20; write 300kB; settle; wait 3; kill
    server lost: stop after 20
    unlike client-gone
half-a-request-then-kill (quick)
    The client has written half a request when it is killed.
    client made: write 1kB; settle; kill
    server received 2kB: write 5
    unlike client-gone
half-a-request-then-close
    The client has written half a request when it closes.
    client made: write 1kB; lose
    server received 2kB: write 5
reader-is-killed (quick)
    The server is killed while the client's producer writes.
    client made: push 12MB
    server received 300kB: kill
    races the kernel sends a reset if data is unread when a process ends
reader-is-killed-with-everything-read (quick)
    The server is killed when it has read the request; the client waits for an answer.
    client made: write 300kB
    server received 300kB: settle; kill
    unlike server-gone
paused-reader-is-killed (quick)
    The server pauses and is killed with all data unread.
    client made: write 300kB; event written
    server made: pause; await written; settle; kill
    unlike unread
killed-after-half-closing
    The client half-closes and is killed before the answer.
    client made: write 5; half; settle; kill
    client write-lost:
    server read-lost: await peer-ended; settle; write 5; settle; write 5
    races bytes that are written after the peer has closed cause a reset
forks (quick, everywhere)
    The client forks; the child holds the descriptors for two seconds; the conversation continues.
    client made: fork 2; write 300kB
    client received 300kB: lose
    server received 300kB: write 300kB
forks-and-closes (quick)
    The client writes, forks and closes; the child outlives it.
    client made: write 300kB; fork 2; lose
    server lost: stop
forks-and-is-killed
    The client writes, forks and is killed; the child outlives it and holds the connection open.
    client made: write 300kB; settle; fork 2; kill
    server lost: stop
    unlike client-gone
    seconds 2
forks-a-child-that-ends-at-once (quick)
    The server forks, the child exits at once, and the conversation continues.
    client made: write 300kB; settle; write 300kB
    server received 300kB: fork 0
    server received 600kB: write 300kB; lose
""",
        {
            "client-gone": vanished("server"),
            "server-gone": vanished("client"),
            "flushed": (_FLUSHED,),
            "paused": (_PAUSED,),
            "unread": (_UNREAD,),
        },
    ),
)
