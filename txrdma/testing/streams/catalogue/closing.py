"""Conversations about closing and aborting connections: by either end, at any time, with data in flight."""

from __future__ import annotations

from txrdma.testing.streams.conversation import conversations

# The conversations that delay a call do not run on asyncio, which polls its descriptors before it runs calls
# with a delay of 0.
CONVERSATIONS = conversations("""
idle-then-closed
    The connection is idle for a second before the client closes.
    client made: wait 1; lose
    server lost: stop
both-close-at-once (quick, everywhere)
    Both ends close at the same time without having written.
    client made: settle; lose
    server made: settle; lose
    races either end may see the other's end before its own
both-write-and-close-at-once (quick)
    Both ends write 300 kB and close at the same time; neither reads the other's data.
    client made: write 300kB; lose
    server made: write 300kB; lose
    races the kernel of an end that closes with unread data sends a reset, which may overtake data
    also client made, lost ConnectionDone
    also server made, lost ConnectionLost
closes-twice
    The client calls loseConnection twice.
    client made: write 300kB; lose; lose
    server lost: stop
writes-after-closing (quick)
    Data written directly after loseConnection arrives; after the end it causes no error.
    client made: write 5; lose; write 300kB
    client lost: write 5; lose; abort; stop
    server lost: stop
delays-and-closes (quick)
    The client schedules a call without a delay inside dataReceived, then closes there.
    client received 5: delay; lose
    server made: write 5
delays-answers-and-closes (quick)
    Each end answers what it receives, schedules a call without a delay, and closes.
    client received 5: write 300kB; delay; lose
    server made: write 5
    server received 300kB: delay; lose
delays-and-aborts (quick)
    The client aborts inside dataReceived, where it has delayed a call by no time before.
    client received 5: delay; abort
    server made: write 5
delays-and-is-closed (quick)
    The server writes and closes; the client schedules a call without a delay inside dataReceived.
    client received 5: delay
    server made: write 5; lose
closes-on-word (quick, everywhere)
    The server closes when it has received the last message.
    client made: write 300kB
    server received 300kB: write 5; lose
closes-inside-dataReceived (quick)
    The server closes inside dataReceived while more data arrives.
    client made: push 5MB
    server received 1kB: lose
    races the kernel of an end that closes with unread data sends a reset, which may overtake data
    also client made, stop-producing, lost ConnectionLost
answers-and-closes-inside-dataReceived
    The server answers and closes while more data arrives, as web servers refuse an upload.
    client made: push 5MB
    server received 1kB: write 300kB; lose
    races the kernel of an end that closes with unread data sends a reset, which may overtake data
    also client made, stop-producing, lost ConnectionDone; 300000
closes-with-unread-data (quick)
    The server has paused and closes without having read the received data.
    client made: write 300kB; event written
    server made: pause; await written; settle; lose
    races the kernel of an end that closes with unread data sends a reset, which may overtake data
answers-and-closes-with-unread-data
    The server has paused, writes, and closes without having read the received data.
    client made: write 300kB; event written
    server made: pause; await written; settle; write 300kB; lose
    races the kernel of an end that closes with unread data sends a reset, which may overtake data
    also client made, lost ConnectionDone; 300000
pauses-and-closes (quick)
    The server pauses and closes after it has read all received data.
    client lost: stop
    server made: pause; lose
pauses-and-closes-inside-dataReceived (quick)
    The server pauses, answers and closes inside dataReceived.
    client made: write 5
    server data: pause; write 300kB; lose
resumes-after-closing
    The server resumes after loseConnection; unread data is not delivered.
    client made: write 5; event written
    server made: pause; await written; settle; lose; resume
    races the kernel of an end that closes with unread data sends a reset, which may overtake data
writes-after-the-peer-closed (quick)
    The client has paused, so that it does not notice that the server has closed, and writes twice.
    client made: pause; await closed; settle; write 5; settle; write 5; settle; resume
    server made: lose
    server lost: event closed; stop
    races bytes that are written after the peer has closed cause a reset, before or after the end is read
pushes-to-who-has-closed
    The client's producer continues after the server, which reads nothing, has closed.
    client made: pause; await closed; settle; push 5MB; settle; resume
    server made: lose
    server lost: event closed; stop
    races bytes that are written after the peer has closed cause a reset, before or after the end is read
client-aborts (quick, everywhere)
    The client aborts an idle connection.
    client made: settle; abort
    server lost: stop
server-aborts (quick, everywhere)
    The server aborts an idle connection.
    client lost: stop
    server made: settle; abort
client-aborts-inside-dataReceived (quick)
    The client aborts when it receives the first byte.
    client data: abort
    server made: write 5
server-aborts-inside-dataReceived
    The server aborts when it receives the first byte.
    client made: write 5
    server data: abort
server-aborts-at-once
    The server aborts inside connectionMade.
    client lost: stop
    server made: abort
    races the reset may come before the client's protocol has its connection
aborts-with-unsent-data (quick)
    The client writes 5 MB and aborts in the same reactor iteration.
    client made: write 5MB; abort
    server lost: stop
    races a reset overtakes data
aborts-with-unread-data (quick)
    The server has paused and aborts without having read the received data.
    client made: write 300kB; event written
    server made: pause; await written; settle; abort
aborts-after-closing
    The client closes, waits for a paused reader without success, and aborts.
    client made: write 12MB; lose; settle; abort
    client lost: event aborted; stop
    server made: pause; await aborted; settle; resume
    races a reset overtakes data
aborts-while-the-peer-pushes (quick)
    The server aborts while the client's producer writes.
    client made: push 5MB
    server received 300kB: abort
    races a reset overtakes data
both-abort
    Both ends abort at the same time.
    client made: settle; abort
    server made: settle; abort
    races either end may see the other's end before its own
    also client made, lost ConnectionAborted
    also client made, lost ConnectionLost
    also server made, lost ConnectionAborted
    also server made, lost ConnectionLost
mistake-in-dataReceived (quick)
    The server's dataReceived raises an exception.
    client made: write 5
    server data: raise
mistake-in-connectionLost
    The client's connectionLost raises an exception.
    client made: write 300kB; lose
    client lost: stop; raise
    server lost: stop
""")
