"""
The communication manager: two of them with a connection, and messages of anything to either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness import Target

from txrdma.cm.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU, SIDRREP, SIDRREQ
from txrdma.test.support.captures import packets
from txrdma.test.support.cm.ends import SERVICE, World

_KINDS = (REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDRREQ, SIDRREP, LAP, APR)
"""In the order of their attributes."""

_LENGTH = 232
_BEFORE = 24
"""Bytes of a datagram before a message."""


def _messages(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Messages with a byte of flags each; the last one may be short."""
    for at in range(0, len(raw) - 2, _LENGTH + 2):
        kind: Any = _KINDS[raw[at] % len(_KINDS)]
        yield raw[at + 1], kind.decode(raw[at + 2 : at + 2 + _LENGTH].ljust(_LENGTH, b"\0"))


def _managers(raw: bytes) -> None:
    """Nothing fails, whatever comes, with right ids or wrong ones; and all connections come to an end."""
    world = World()
    client, server = world.end("10.0.0.1"), world.end("10.0.0.2")
    server.listen(backlog=4)
    managed = client.connect(server)
    connection = managed.connection
    world.run(until=0.05)
    for flags, message in _messages(raw):
        names = {field.name for field in type(message).fields}
        one, other = (server, client) if flags & 1 else (client, server)
        ids = connection.localCommID, connection.remoteCommID
        theirs, ours = ids if flags & 1 else ids[::-1]
        if flags & 2 and "localCommID" in names:
            message = message.replace(localCommID=theirs)
        if flags & 4 and "remoteCommID" in names:
            message = message.replace(remoteCommID=ours)
        if flags & 8 and "serviceID" in names:
            message = message.replace(serviceID=SERVICE)
        one.manager.received(message, 7, other.pathTo(one), world.now)
        one.turn()
        world.run(until=world.now + (flags >> 4) * 0.05)
    for end in (client, server):
        for each in list(end.manager._connections.values()):
            end.disconnect(each)
    world.run(until=world.now + 1e6)
    if len(client.manager) or len(server.manager):
        raise AssertionError(f"{len(client.manager)} and {len(server.manager)} connections never end")


def _seeds() -> Iterator[bytes]:
    for name in ("rping", "cm-reject"):
        for captured in packets(name):
            payload = captured.packet.payload
            if captured.packet.bth.destination == 1:
                number = int.from_bytes(payload[16:18], "big") - REQ.attributeID
                yield bytes((number, 0x1F)) + payload[_BEFORE:]


TARGETS = {"cm-managers": Target(_managers, _seeds)}
