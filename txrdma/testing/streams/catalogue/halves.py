"""Conversations with half-closed connections: an end that has written everything still reads."""

from __future__ import annotations

from txrdma.testing.streams.conversation import conversations, ROCE, Unlike


def _waits(*calls: str) -> tuple[Unlike, ...]:
    """Declare the calls of a client whose transport waits for its producer."""
    why = (
        "`loseConnection` waits for a push producer that writes in each iteration of the reactor until it is "
        "unregistered; TCP closes although a push producer that is not paused has more to write"
    )
    return (Unlike(("shared-memory", *ROCE), "client", why, calls=calls),)


CONVERSATIONS = conversations(
    """
client-half-closes (quick, everywhere)
    The client half-closes after its request, and the server answers and closes.
    client made: write 300kB; half
    client read-lost: lose
    server read-lost: write 300kB; lose
server-half-closes (quick)
    The server writes and half-closes; the client answers when it has noticed that, and closes.
    client read-lost: write 300kB; lose
    server made: write 300kB; half
    server read-lost: lose
half-closes-with-nothing-written (quick)
    The client half-closes without having written, and receives 5 MB.
    client made: half
    client read-lost: lose
    server read-lost: write 5MB; lose
both-half-close (quick)
    Both ends write and half-close; the client closes when the server has half-closed.
    client made: write 300kB; half
    client read-lost: lose
    server made: write 300kB; half
    server read-lost: settle; lose
    races either end may come first; one that closes before its own is sent does not get writeConnectionLost
    also client made, read-lost, write-lost, lost ConnectionDone; 300000
    also client made, read-lost, lost ConnectionDone; 300000
    also server made, read-lost, write-lost, lost ConnectionDone; 300000
    also server made, read-lost, lost ConnectionDone; 300000
half-closes-to-a-protocol-without-half-close (quick)
    The client half-closes; the server's protocol cannot half-close, so the connection closes.
    client made: write 300kB; half
    client read-lost: lose
    server lost: stop
receives-much-after-half-closing (quick)
    The client half-closes while the server writes 5 MB, all of which arrives.
    client made: write 5; half
    client read-lost: lose
    server made: push 5MB; await sent; lose
    server read-lost:
half-closes-with-a-push-producer (quick, everywhere)
    The client half-closes while its push producer is registered and writes.
    client made: push 5MB; half
    client read-lost: lose
    server read-lost: write 300kB; lose
    races how much a push producer has written when TCP's buffer is empty varies
    unlike half
half-closes-with-a-pull-producer (quick)
    The client half-closes while its pull producer is registered.
    client made: pull 5MB; half
    client read-lost: lose
    server read-lost: write 300kB; lose
half-closes-with-an-idle-producer (quick)
    The client half-closes while an idle producer is registered, which is unregistered later.
    client made: write 5; hold; half; settle; release
    client read-lost: lose
    server read-lost: write 300kB; lose
half-closes-with-a-file
    The client sends a file and half-closes when it is sent.
    client made: file 5MB; await sent; half
    client read-lost: lose
    server read-lost: write 300kB; lose
half-closes-to-who-has-paused (quick)
    The server has paused when the client half-closes; it resumes, receives everything, and answers.
    client made: write 300kB; half; event written
    client read-lost: lose
    server made: pause; await written; settle; resume
    server read-lost: write 5; lose
half-closes-with-more-than-fits
    The client writes 12 MB and half-closes, and the server reads slowly.
    client made: write 12MB; half
    client read-lost: lose
    server made: slowly 0.005
    server read-lost: write 5; lose
half-closes-twice
    The client calls loseWriteConnection twice.
    client made: write 5; half; half
    client read-lost: lose
    server read-lost: write 300kB; lose
writes-after-half-closing
    What the client writes after its half-close does not arrive.
    client made: write 5; half; write 300kB
    client read-lost: lose
    server read-lost: write 300kB; lose
half-closes-then-closes
    The client half-closes and closes at once.
    client made: write 300kB; half; lose
    client write-lost:
    server read-lost: lose
    races the server may answer after the client has closed
half-closes-then-aborts
    The client half-closes, and aborts when the server knows.
    client made: write 5; half; await halved; abort
    client write-lost:
    client lost: event aborted; stop
    server read-lost: event halved; await aborted; settle; write 5
closes-with-a-push-producer (quick)
    The client closes while its push producer is registered: everything that it produces arrives.
    client made: push 5MB; lose
    server lost: stop
    races how much a push producer has written when TCP's buffer is empty varies
    unlike close
closes-with-a-pull-producer (quick)
    The client closes while its pull producer is registered.
    client made: pull 5MB; lose
    server lost: stop
closes-with-an-idle-producer (quick)
    The client closes while an idle producer is registered, which is unregistered later.
    client made: write 300kB; hold; lose; settle; release
    server lost: stop
closes-with-a-paused-producer (quick)
    The client closes while a paused producer is registered, which is unregistered later.
    client made: hold; write 5MB; lose; await all; settle; release
    server received 5MB: event all
peer-closes-with-an-idle-producer (quick)
    The server closes while a producer of the client is registered; its stopProducing is called.
    client made: write 5; hold
    server received 5: settle; lose
answers-who-closes (quick, everywhere)
    The client closes; the server answers and closes when it notices that.
    client made: write 5; lose
    server read-lost: write 5; lose
answers-who-has-closed (quick)
    The client has closed for a while when the server answers and closes.
    client made: write 5; lose
    client lost: event closed; stop
    server read-lost: await closed; settle; write 5; lose
answers-much-to-who-has-closed (quick, everywhere)
    The client has closed for a while when the server answers with 300 kB and closes.
    client made: write 5; lose
    client lost: event closed; stop
    server read-lost: await closed; settle; write 300kB; lose
answers-and-half-closes-to-who-has-closed (quick, everywhere)
    The client has closed for a while when the server answers and half-closes.
    client made: write 5; lose
    client lost: event closed; stop
    server read-lost: await closed; settle; write 5; half
    server write-lost: settle; lose
half-closes-to-who-has-closed
    The client has closed for a while when the server half-closes without having written.
    client made: write 5; lose
    client lost: event closed; stop
    server read-lost: await closed; settle; half
    server write-lost: settle; lose
writes-to-who-has-closed (quick)
    The client has closed for a while when the server writes, and closes later.
    client made: write 5; lose
    client lost: event closed; stop
    server read-lost: await closed; settle; write 5; settle; lose
pulls-for-who-has-closed (quick)
    The client has closed for a while when the server registers a pull producer and closes.
    client made: write 5; lose
    client lost: event closed; stop
    server read-lost: await closed; settle; pull 300kB; lose
""",
    {
        "half": _waits("made", "write-lost", "read-lost", "lost ConnectionDone"),
        "close": _waits("made", "lost ConnectionDone"),
    },
)
