"""Requests to a site without a network: real HTTP over string transports."""

from __future__ import annotations

import gzip
import json
from typing import Any, NamedTuple

from twisted.internet.interfaces import IAddress
from twisted.internet.testing import StringTransport
from twisted.web.server import Site


class Answer(NamedTuple):
    """A response; headers are keyed by lower-case names."""

    code: int
    heads: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the JSON body of the response."""
        assert self.heads["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """Return the body of the response as text."""
        return self.body.decode()


class Connection:
    """The client's end of a connection to a site."""

    def __init__(self, site: Site, address: IAddress | None = None) -> None:
        self.transport = StringTransport()
        self.protocol = site.buildProtocol(address)
        self.protocol.makeConnection(self.transport)

    def ask(self, path: str, method: str = "GET", **heads: str) -> None:
        """Send a request with C{Connection: close}."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in heads.items()]
        self.protocol.dataReceived("\r\n".join([*lines, "", ""]).encode())

    def close(self) -> None:
        """Close the client's connection."""
        from twisted.internet.error import ConnectionLost
        from twisted.python.failure import Failure

        self.protocol.connectionLost(Failure(ConnectionLost()))

    @property
    def isEnding(self) -> bool:
        """Whether the site closes or has aborted the connection."""
        return self.transport.disconnecting or self.transport.disconnected

    @property
    def answer(self) -> Answer:
        """Return the response so far."""
        head, _, body = self.transport.value().partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        heads = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if heads.get("transfer-encoding") == "chunked":
            body = _joined(body)
        if heads.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return Answer(int(first.split()[1]), heads, body)


def _joined(body: bytes) -> bytes:
    """Return a chunked body, as far as it was received."""
    found = b""
    while b"\r\n" in body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        found += rest[:length]
        body = rest[length + 2 :]
    return found


def fetch(site: Site, path: str, method: str = "GET", **heads: str) -> Answer:
    """Return the response to one request, which must be answered synchronously."""
    connection = Connection(site)
    connection.ask(path, method, **heads)
    return connection.answer
