"""
Fuzz target of the connection manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness import Target

from txrdma.cm.layouts.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU, SIDRREP, SIDRREQ
from txrdma.test.support.captures import packets
from txrdma.test.support.cm.ends import SERVICE, World

_KINDS = (REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDRREQ, SIDRREP, LAP, APR)  # ordered by attribute ID
_HEADER_BYTES = 24  # of a management datagram, before the message
_MESSAGE_BYTES = 232

# What the second byte before each message means.
_TO_SERVER = 1
_KNOWN_LOCAL_ID = 2
_KNOWN_REMOTE_ID = 4
_KNOWN_SERVICE = 8
_DELAY_SHIFT = 4


def _messages(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Split the input into flags and messages: a byte for the kind, a byte of flags, and the message."""
    for at in range(0, len(raw) - 2, _MESSAGE_BYTES + 2):
        kind: Any = _KINDS[raw[at] % len(_KINDS)]
        yield raw[at + 1], kind.decode(raw[at + 2 : at + 2 + _MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0"))


def _receiveMessages(raw: bytes) -> None:
    """Two connected managers accept any message without an exception, and all their connections end."""
    world = World()
    client, server = world.end("10.0.0.1"), world.end("10.0.0.2")
    server.listen(backlog=4)
    connection = client.connect(server).connection
    world.run(until=0.05)
    for flags, message in _messages(raw):
        fields = {field.name for field in type(message).fields}
        if flags & _TO_SERVER:
            receiver, sender = server, client
            senderID, receiverID = connection.localCommID, connection.remoteCommID
        else:
            receiver, sender = client, server
            senderID, receiverID = connection.remoteCommID, connection.localCommID
        if flags & _KNOWN_LOCAL_ID and "localCommID" in fields:
            message = message.replace(localCommID=senderID)
        if flags & _KNOWN_REMOTE_ID and "remoteCommID" in fields:
            message = message.replace(remoteCommID=receiverID)
        if flags & _KNOWN_SERVICE and "serviceID" in fields:
            message = message.replace(serviceID=SERVICE)
        receiver.manager.received(message, 7, sender.pathTo(receiver), world.now)
        receiver.turn()
        world.run(until=world.now + (flags >> _DELAY_SHIFT) * 0.05)
    for end in (client, server):
        for managed in list(end.manager._connections.values()):
            end.disconnect(managed)
    world.run(until=world.now + 1e6)
    if len(client.manager) or len(server.manager):
        raise AssertionError(f"{len(client.manager)} and {len(server.manager)} connections never end")


def _recorded() -> Iterator[bytes]:
    for name in ("rping", "cm-reject"):
        for captured in packets(name):
            payload = captured.packet.payload
            if captured.packet.bth.destination == 1:
                kind = int.from_bytes(payload[16:18], "big") - REQ.attributeID
                yield bytes((kind, 0x1F)) + payload[_HEADER_BYTES:]


TARGETS = {"CM messages": Target(_receiveMessages, _recorded)}
