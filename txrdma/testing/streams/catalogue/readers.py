"""Conversations whose readers are paused, slow, blocked, or stopped by the system."""

from __future__ import annotations

from txrdma.testing.streams.conversation import conversations, ROCE, Unlike

_LATER = Unlike(
    ROCE,
    "client",
    "`ConnectionDone` means that the peer has received the data. With RoCE in software no kernel receives it "
    "for a blocked process, so the closing end gets it when the peer's process runs again",
    later=True,
)

CONVERSATIONS = conversations(
    """
paused-for-half-a-second
    The server has paused for half a second while the client writes and closes without exiting.
    client made: write 300kB; lose
    client lost: wait 2; stop
    server made: pause; wait 0.5; resume
paused-while-5-comes-and-the-peer-exits (quick)
    The server has paused while the client writes 5, closes and exits; then it reads.
    client made: write 5; lose
    server made: pause; await peer-ended; settle; resume
paused-while-300kB-comes-and-the-peer-exits (quick, everywhere)
    The server has paused while the client writes 300kB, closes and exits; then it reads.
    client made: write 300kB; lose
    server made: pause; await peer-ended; settle; resume
paused-for-64-s (everywhere)
    The server pauses for 64 s; the client closes meanwhile, without exiting.
    client made: write 300kB; lose
    client lost: wait 66; stop
    server made: pause; wait 64; resume
    seconds 67
paused-for-64-s-with-more-than-fits
    The server pauses for 64 s while the client has 12 MB to send.
    client made: write 12MB; lose
    server made: pause; wait 64; resume
    seconds 65
paused-for-64-s-after-a-half-close
    The server pauses for 64 s, during which the client half-closes, and answers then.
    client made: write 300kB; half
    client read-lost: lose
    server made: pause; wait 64; resume
    server read-lost: write 5; lose
    seconds 65
idle-for-64-s
    The connection is idle for 64 s; then both ends write.
    client made: wait 64; write 300kB
    client received 300kB: lose
    server received 300kB: write 300kB
    seconds 65
slow-reader (quick)
    The server pauses after each piece; the client writes 5 MB, closes and exits.
    client made: write 5MB; lose
    server made: slowly 0.005
slow-reader-of-a-producer
    The server pauses after each piece; the client's producer writes 12 MB, and the client exits.
    client made: push 12MB; await sent; lose
    server made: slowly 0.005
both-slow
    Both write 5 MB and read slowly.
    client made: slowly 0.005; write 5MB
    client received 5MB: lose
    server made: slowly 0.005; write 5MB
blocked-for-2-s
    The server's reactor is blocked for two seconds while the client writes, closes and exits.
    client made: write 300kB; lose
    server made: block 2
    unlike later
    seconds 2
blocked-for-2-minutes (everywhere)
    The server's reactor is blocked for two minutes while the client writes, closes and exits.
    client made: write 300kB; lose
    server made: block 120
    unlike later
    seconds 121
blocked-for-2-minutes-between-words
    The server's reactor is blocked for two minutes in the middle of a conversation, which continues.
    client made: write 300kB; settle; write 12MB
    client received 300kB: lose
    server received 300kB: block 120
    server received 12MB: write 300kB
    seconds 121
blocked-for-2-minutes-idle
    The server's reactor is blocked for two minutes on an idle connection; then both ends write.
    client made: wait 121; write 300kB
    client received 300kB: lose
    server made: settle; block 120
    server received 300kB: write 300kB
    seconds 122
writer-blocked-for-2-minutes
    The client writes, its reactor is blocked for two minutes, and it continues.
    client made: write 300kB; settle; block 120; write 300kB; lose
    server lost: stop
    seconds 121
frozen-for-2-s
    The server is stopped by SIGSTOP for two seconds, while the client writes, closes and exits.
    client made: write 300kB; lose
    server made: freeze 2
    unlike later
    seconds 2
frozen-for-2-minutes
    The server is stopped by SIGSTOP for two minutes, while the client writes, closes and exits.
    client made: write 300kB; lose
    server made: freeze 120
    unlike later
    seconds 121
frozen-for-2-minutes-while-much-comes
    The server is stopped by SIGSTOP for two minutes, while the client's producer writes 12 MB.
    client made: push 12MB; await sent; lose
    server received 1kB: freeze 120
    seconds 121
producer-is-paused-and-resumed (quick)
    A producer is paused when the buffer is full, and resumed when it is empty.
    client made: hold; write 5MB; await all; settle; release; lose
    server received 5MB: event all
""",
    {"later": (_LATER,)},
)
