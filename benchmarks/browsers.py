"""
Browsers that show pages of a monitor, in a process of their own: C{python -m benchmarks.browsers PORT ROUNDS
PATHS}, with the paths as JSON, one for each browser.

Each reads events, and requests its page again after each round, as C{monitor.js} does, by connections that
stay open. Prints the seconds of all requests after those of the first round, and the bytes of a page.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio import StreamReader, StreamWriter
from typing import Final

_LONGEST: Final = 1 << 22
"""Bytes of the longest line: a round of a large fabric is one."""

_AT_ONCE: Final = 20
"""Number of browsers that connect at a time, which is less than the backlog of a port."""

_HEAD: Final = "GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"


async def _request(port: int, path: str) -> tuple[StreamReader, StreamWriter]:
    """Connect, and request a path that is not compressed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LONGEST)
    writer.write(_HEAD.format(path=path, more="").encode())
    await _head(reader)
    return reader, writer


async def _head(reader: StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the monitor answers {head[:200]!r}")


async def _body(reader: StreamReader) -> int:
    """Read a body in chunks; return its length."""
    size = 0
    while length := int(await reader.readline(), 16):
        size += length
        await reader.readexactly(length + 2)
    await reader.readline()
    return size


async def _browser(
    port: int, path: str, rounds: int, connecting: asyncio.Semaphore, seconds: list[float], sizes: list[int]
) -> None:
    async with connecting:
        events, _writer = await _request(port, "/api/v1/events")
        reader, writer = await _request(port, path)
        sizes.append(await _body(reader))
    asked = _HEAD.format(path=path, more="Accept-Encoding: gzip\r\nX-Refresh: live\r\n").encode()
    for number in range(rounds):
        while not (await events.readline()).startswith(b"event: round"):
            if events.at_eof():
                raise RuntimeError("the monitor has closed the connection of events")
        begun = time.perf_counter()
        writer.write(asked)
        await _head(reader)
        await _body(reader)
        if number:
            seconds.append(time.perf_counter() - begun)


async def main(port: int, rounds: int, paths: list[str]) -> None:
    connecting, seconds, sizes = asyncio.Semaphore(_AT_ONCE), list[float](), list[int]()
    await asyncio.gather(*(_browser(port, path, rounds, connecting, seconds, sizes) for path in paths))
    print(json.dumps({"seconds": seconds, "bytes": sum(sizes) / len(sizes)}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])))
