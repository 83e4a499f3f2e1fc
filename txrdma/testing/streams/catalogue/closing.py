"""
Conversations about the close of connections: by whom, when, with what still under way; and aborted.
"""

from __future__ import annotations

from txrdma.testing.streams.conversation import Conversation, Outcome

_UNREAD = "who closes with unread data in its buffer has its kernel send a reset, which may overtake data"
_DONE = ("made", "lost ConnectionDone")
_LOST = ("made", "lost ConnectionLost")
_ABORTED = ("made", "lost ConnectionAborted")
_AT_ONCE = "either end may see the other's end before its own"

CONVERSATIONS = (
    Conversation(
        "idle-then-closed",
        "The connection is idle for a second before the client closes.",
        client="made: wait 1; lose",
        server="lost: stop",
    ),
    Conversation(
        "both-close-at-once",
        "Both ends close at the same time, and nothing was written.",
        client="made: settle; lose",
        server="made: settle; lose",
        races=_AT_ONCE,
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "both-write-and-close-at-once",
        "Both ends write 300 kB and close at the same time; nobody reads what the other has written.",
        client="made: write 300kB; lose",
        server="made: write 300kB; lose",
        races=_UNREAD,
        also=(Outcome("client", _DONE), Outcome("server", _LOST)),
        isQuick=True,
    ),
    Conversation(
        "closes-twice",
        "The client calls loseConnection twice.",
        client="made: write 300kB; lose; lose",
        server="lost: stop",
    ),
    Conversation(
        "writes-after-closing",
        "What is written behind loseConnection does not arrive, and hurts nobody.",
        client="made: write 5; lose; write 300kB\nlost: write 5; lose; abort; stop",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "closes-on-word",
        "The server closes when it has heard the last word.",
        client="made: write 300kB",
        server="heard 300kB: write 5; lose",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "closes-inside-dataReceived",
        "The server closes inside dataReceived, while more is coming.",
        client="made: push 5MB",
        server="heard 1kB: lose",
        races=_UNREAD,
        also=(Outcome("client", ("made", "stop-producing", "lost ConnectionLost")),),
        isQuick=True,
    ),
    Conversation(
        "answers-and-closes-inside-dataReceived",
        "The server answers and closes while more is coming, as web servers refuse an upload.",
        client="made: push 5MB",
        server="heard 1kB: write 300kB; lose",
        races=_UNREAD,
        also=(Outcome("client", ("made", "stop-producing", "lost ConnectionDone"), heard=300_000),),
    ),
    Conversation(
        "closes-with-unread-data",
        "The server has paused, and closes without having read what has come.",
        client="made: write 300kB; cue written",
        server="made: pause; await written; settle; lose",
        races=_UNREAD,
        isQuick=True,
    ),
    Conversation(
        "answers-and-closes-with-unread-data",
        "The server has paused, writes, and closes without having read what has come.",
        client="made: write 300kB; cue written",
        server="made: pause; await written; settle; write 300kB; lose",
        races=_UNREAD,
        also=(Outcome("client", _DONE, heard=300_000),),
    ),
    Conversation(
        "pauses-and-closes",
        "The server pauses and closes; there is nothing that it has not read.",
        client="lost: stop",
        server="made: pause; lose",
        isQuick=True,
    ),
    Conversation(
        "pauses-and-closes-inside-dataReceived",
        "The server pauses inside dataReceived, answers and closes there, too.",
        client="made: write 5",
        server="data: pause; write 300kB; lose",
        isQuick=True,
    ),
    Conversation(
        "resumes-after-closing",
        "The server resumes after loseConnection: what was unread stays unread.",
        client="made: write 5; cue written",
        server="made: pause; await written; settle; lose; resume",
        races=_UNREAD,
    ),
    Conversation(
        "writes-after-the-peer-closed",
        "The client has paused, so that it does not know of the server's end, and writes twice.",
        client="made: pause; await closed; settle; write 5; settle; write 5; settle; resume",
        server="made: lose\nlost: cue closed; stop",
        races="what is written to who has gone comes back as a reset, before or after the end is read",
        isQuick=True,
    ),
    Conversation(
        "pushes-to-who-has-closed",
        "The client's producer goes on when the server, which reads nothing, has closed.",
        client="made: pause; await closed; settle; push 5MB; settle; resume",
        server="made: lose\nlost: cue closed; stop",
        races="what is written to who has gone comes back as a reset, before or after the end is read",
    ),
    Conversation(
        "client-aborts",
        "The client aborts an idle connection.",
        client="made: settle; abort",
        server="lost: stop",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "server-aborts",
        "The server aborts an idle connection.",
        client="lost: stop",
        server="made: settle; abort",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "client-aborts-inside-dataReceived",
        "The client aborts when it hears the first byte.",
        client="data: abort",
        server="made: write 5",
        isQuick=True,
    ),
    Conversation(
        "server-aborts-inside-dataReceived",
        "The server aborts when it hears the first byte.",
        client="made: write 5",
        server="data: abort",
    ),
    Conversation(
        "server-aborts-at-once",
        "The server aborts inside connectionMade.",
        client="lost: stop",
        server="made: abort",
        races="the reset may come before the client has been told of the connection",
    ),
    Conversation(
        "aborts-with-unsent-data",
        "The client writes 5 MB and aborts in the same turn.",
        client="made: write 5MB; abort",
        server="lost: stop",
        races="a reset overtakes data",
        isQuick=True,
    ),
    Conversation(
        "aborts-with-unread-data",
        "The server has paused, and aborts without having read what has come.",
        client="made: write 300kB; cue written",
        server="made: pause; await written; settle; abort",
        isQuick=True,
    ),
    Conversation(
        "aborts-after-closing",
        "The client closes, waits in vain for a reader that has paused, and aborts.",
        client="made: write 12MB; lose; settle; abort\nlost: cue aborted; stop",
        server="made: pause; await aborted; settle; resume",
        races="a reset overtakes data",
    ),
    Conversation(
        "aborts-while-the-peer-pushes",
        "The server aborts while the client's producer writes.",
        client="made: push 5MB",
        server="heard 300kB: abort",
        races="a reset overtakes data",
        isQuick=True,
    ),
    Conversation(
        "both-abort",
        "Both ends abort at the same time.",
        client="made: settle; abort",
        server="made: settle; abort",
        races=_AT_ONCE,
        also=tuple(Outcome(end, calls) for end in ("client", "server") for calls in (_ABORTED, _LOST)),
    ),
    Conversation(
        "mistake-in-dataReceived",
        "The server's dataReceived raises an exception.",
        client="made: write 5",
        server="data: raise",
        isQuick=True,
    ),
    Conversation(
        "mistake-in-connectionLost",
        "The client's connectionLost raises an exception.",
        client="made: write 300kB; lose\nlost: stop; raise",
        server="lost: stop",
    ),
)
