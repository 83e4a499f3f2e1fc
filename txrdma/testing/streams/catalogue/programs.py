"""Conversations like those of programs: requests, greetings, files, many small writes, new connections."""

from __future__ import annotations

from txrdma.testing.streams.conversation import Conversation, conversations

CONVERSATIONS = (
    *conversations("""
request-and-answer (quick)
    The client asks, the server answers, and the client closes.
    client made: write 300
    client received 300kB: lose
    server received 300: write 300kB
request-and-file (quick, everywhere)
    The client asks, and the server sends a file and closes, as HTTP/1.0 does.
    client made: write 300
    server received 300: file 5MB; await sent; lose
request-half-close-and-file
    The client asks and half-closes, and the server sends a file and closes.
    client made: write 300; half
    client read-lost: lose
    server read-lost: file 5MB; await sent; lose
"""),
    Conversation(
        "many-turns",
        "The client asks and the server answers, thirty times.",
        client="made: write 100\n"
        + "\n".join(f"received {1000 * turn}: write 100" for turn in range(1, 30))
        + "\nreceived 30000: lose",
        server="\n".join(f"received {100 * turn}: write 1000" for turn in range(1, 31)),
        isQuick=True,
    ),
    *conversations("""
server-speaks-first (quick, everywhere)
    The server greets, the client asks, the server answers, and the client writes and closes.
    client received 40: write 300
    client received 1040: write 6; lose
    server made: write 40
    server received 300: write 1000
server-speaks-much-first (quick, everywhere)
    The server greets nine clients at once, in small writes and a large one between them.
    client made: again until 9
    client received 65584: lose
    client lost: stop after 9
    server made: write 44; turn; write 65535; write 5
    server lost: stop after 9
server-speaks-first-and-closes
    The server writes and closes before the client has written.
    client lost: stop
    server made: write 26; lose
quit
    The client writes a last message, and the server closes.
    client received 40: write 6
    server made: write 40
    server received 6: write 20; lose
many-small-writes (quick)
    The client writes 50 kB in pieces of ten bytes in one reactor iteration, and closes.
    client made: write 50kB by 10; lose
    server lost: stop
many-small-writes-in-many-turns
    The client writes 500 times ten bytes, a millisecond apart, and closes.
    client made: trickle 5kB by 10 every 0.001; lose
    server lost: stop
writeSequence
    The client writes 300 kB with one writeSequence, and closes.
    client made: sequence 300kB by 1kB; lose
    server lost: stop
files-both-ways
    Both send a file of 5 MB, and the client closes when it has received everything.
    client made: file 5MB
    client received 5MB: await sent; lose
    server made: file 5MB
has-received-enough (quick)
    The client closes when it has received the first 5 bytes of 300 kB.
    client received 5: lose
    server made: write 300kB
    races the kernel of an end that closes with unread data sends a reset
no-listener (quick)
    The client connects to a port without a listener.
    client lost: stop
connects-again (quick)
    The client connects three times, and each time writes and closes.
    client made: write 300kB; lose
    client lost: stop after 3; again
    server lost: stop after 3
connects-again-when-the-server-closes (quick)
    The server closes three times after the first message, and the client connects again.
    client made: write 5
    client lost: stop after 3; again
    server received 5: write 300kB; lose
    server lost: stop after 3
connects-again-when-the-server-aborts
    The server aborts three times after the first message, and the client connects again.
    client made: write 5
    client lost: stop after 3; again
    server received 5: abort
    server lost: stop after 3
many-connections (quick)
    The client has twenty concurrent connections, writes on each and closes it.
    client made: again until 20; write 300kB; lose
    client lost: stop after 20
    server lost: stop after 20
many-connections-both-ways (everywhere)
    The client sends a request on each of twenty concurrent connections.
    client made: again until 20; write 300
    client received 300kB: lose
    client lost: stop after 20
    server received 300: push 300kB
    server lost: stop after 20
many-connections-and-half-closes
    The client has twenty concurrent connections and half-closes each.
    client made: again until 20; write 300kB; half
    client read-lost: lose
    client lost: stop after 20
    server read-lost: write 300kB; lose
    server lost: stop after 20
stops-listening (quick, everywhere)
    The server stops listening: new clients are refused, and the existing connection continues.
    client made: await closed; again
    client failed: event refused
    server made: close-port; await refused; write 300kB; lose
"""),
)
