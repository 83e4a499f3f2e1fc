"""
Conversations like those of real programs: requests, greetings, files, many small writes, new connections.
"""

from __future__ import annotations

from txrdma.testing.streams.conversation import Conversation

CONVERSATIONS = (
    Conversation(
        "request-and-answer",
        "The client asks, the server answers, and the client closes.",
        client="made: write 300\nreceived 300kB: lose",
        server="received 300: write 300kB",
        isQuick=True,
    ),
    Conversation(
        "request-and-file",
        "The client asks, and the server sends a file and closes, as HTTP/1.0 does.",
        client="made: write 300",
        server="received 300: file 5MB; await sent; lose",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "request-half-close-and-file",
        "The client asks and half-closes, and the server sends a file and closes.",
        client="made: write 300; half\nread-lost: lose",
        server="read-lost: file 5MB; await sent; lose",
    ),
    Conversation(
        "many-turns",
        "The client asks and the server answers, thirty times.",
        client="made: write 100\n"
        + "\n".join(f"received {1000 * turn}: write 100" for turn in range(1, 30))
        + "\nreceived 30000: lose",
        server="\n".join(f"received {100 * turn}: write 1000" for turn in range(1, 31)),
        isQuick=True,
    ),
    Conversation(
        "server-speaks-first",
        "The server greets, the client asks, the server answers, and the client writes and closes.",
        client="received 40: write 300\nreceived 1040: write 6; lose",
        server="made: write 40\nreceived 300: write 1000",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "server-speaks-much-first",
        "The server greets nine clients at once, in small writes and a large one between them.",
        client="made: again until 9\nreceived 65584: lose\nlost: stop after 9",
        server="made: write 44; turn; write 65535; write 5\nlost: stop after 9",
        isQuick=True,
        isEverywhere=True,
    ),
    Conversation(
        "server-speaks-first-and-closes",
        "The server writes and closes before the client has written.",
        client="lost: stop",
        server="made: write 26; lose",
    ),
    Conversation(
        "quit",
        "The client writes a last message, and the server closes.",
        client="received 40: write 6",
        server="made: write 40\nreceived 6: write 20; lose",
    ),
    Conversation(
        "many-small-writes",
        "The client writes 50 kB in pieces of ten bytes in one reactor iteration, and closes.",
        client="made: write 50kB by 10; lose",
        server="lost: stop",
        isQuick=True,
    ),
    Conversation(
        "many-small-writes-in-many-turns",
        "The client writes 500 times ten bytes, a millisecond apart, and closes.",
        client="made: trickle 5kB by 10 every 0.001; lose",
        server="lost: stop",
    ),
    Conversation(
        "writeSequence",
        "The client writes 300 kB with one writeSequence, and closes.",
        client="made: sequence 300kB by 1kB; lose",
        server="lost: stop",
    ),
    Conversation(
        "files-both-ways",
        "Both send a file of 5 MB, and the client closes when it has received everything.",
        client="made: file 5MB\nreceived 5MB: await sent; lose",
        server="made: file 5MB",
    ),
    Conversation(
        "has-received-enough",
        "The client closes when it has received the first 5 bytes of 300 kB.",
        client="received 5: lose",
        server="made: write 300kB",
        races="who closes with unread data in its buffer has its kernel send a reset",
        isQuick=True,
    ),
    Conversation(
        "nobody-listens",
        "The client connects to a port without a listener.",
        client="lost: stop",
        server="",
        isQuick=True,
    ),
    Conversation(
        "connects-again",
        "The client connects three times, and each time writes and closes.",
        client="made: write 300kB; lose\nlost: stop after 3; again",
        server="lost: stop after 3",
        isQuick=True,
    ),
    Conversation(
        "connects-again-when-the-server-closes",
        "The server closes three times after the first message, and the client connects again.",
        client="made: write 5\nlost: stop after 3; again",
        server="received 5: write 300kB; lose\nlost: stop after 3",
        isQuick=True,
    ),
    Conversation(
        "connects-again-when-the-server-aborts",
        "The server aborts three times after the first message, and the client connects again.",
        client="made: write 5\nlost: stop after 3; again",
        server="received 5: abort\nlost: stop after 3",
    ),
    Conversation(
        "many-connections",
        "The client has twenty concurrent connections, writes on each and closes it.",
        client="made: again until 20; write 300kB; lose\nlost: stop after 20",
        server="lost: stop after 20",
        isQuick=True,
    ),
    Conversation(
        "many-connections-both-ways",
        "The client sends a request on each of twenty concurrent connections.",
        client="made: again until 20; write 300\nreceived 300kB: lose\nlost: stop after 20",
        server="received 300: push 300kB\nlost: stop after 20",
        isEverywhere=True,
    ),
    Conversation(
        "many-connections-and-half-closes",
        "The client has twenty concurrent connections and half-closes each.",
        client="made: again until 20; write 300kB; half\nread-lost: lose\nlost: stop after 20",
        server="read-lost: write 300kB; lose\nlost: stop after 20",
    ),
    Conversation(
        "stops-listening",
        "The server stops listening: new clients are refused, and the existing connection continues.",
        client="made: await closed; again\nfailed: cue refused",
        server="made: close-port; await refused; write 300kB; lose",
        isQuick=True,
        isEverywhere=True,
    ),
)
