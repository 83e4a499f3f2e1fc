"""
A program with AF_SMC sockets that does not use txrdma, and is controlled by its standard input.

Run as C{python smcprogram.py ADDRESS}, the address to which its sockets are bound. Requests and answers are
lines of JSON as for L{txrdma.test.system.kernel.agent}; each request has its own thread.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import zlib
from typing import Any

AF_SMC = 43
PATIENCE = 60.0
CHUNK = 1 << 16


def smcSocket() -> socket.socket:
    """Return an AF_SMC stream socket that appears as an IPv4 one: Python does not know AF_SMC addresses."""
    raw = socket.socket(AF_SMC, socket.SOCK_STREAM, 0)
    dressed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=raw.detach())
    dressed.settimeout(PATIENCE)
    return dressed


def chunks(length: int, seed: int) -> Any:
    """Return that many bytes without repetition, in pieces."""
    number = 0
    while length:
        size = min(length, CHUNK)
        yield (struct.pack(">QQ", seed, number) * (CHUNK // 16))[:size]
        number += 1
        length -= size


class Program:
    """The sockets of the program, by number."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sockets: dict[int, socket.socket] = {}

    def keep(self, made: socket.socket) -> list[int]:
        """Store a socket; return its number, inode and local port."""
        made.settimeout(PATIENCE)
        self.sockets[made.fileno()] = made
        return [made.fileno(), os.fstat(made.fileno()).st_ino, made.getsockname()[1]]

    def listen(self) -> list[int]:
        """Listen at an unused port."""
        made = smcSocket()
        made.bind((self.address, 0))
        made.listen(128)
        return self.keep(made)

    def accept(self, listener: int) -> list[int]:
        return self.keep(self.sockets[listener].accept()[0])

    def connect(self, host: str, port: int) -> list[Any]:
        made = smcSocket()
        made.bind((self.address, 0))
        made.connect((host, port))
        return self.keep(made)

    def send(self, number: int, length: int, seed: int) -> int:
        """Send bytes; return their checksum."""
        checksum = 0
        for chunk in chunks(length, seed):
            checksum = zlib.crc32(chunk, checksum)
            self.sockets[number].sendall(chunk)
        return checksum

    def receive(self, number: int, length: int, flags: int = 0) -> list[Any]:
        """Receive so many bytes, or up to the end; return their number, checksum, and first ones."""
        checksum = got = 0
        first = b""
        while got < length:
            data = self.sockets[number].recv(min(length - got, 1 << 20), flags)
            if not data:
                break
            first = first or data[:100]
            checksum = zlib.crc32(data, checksum)
            got += len(data)
        return [got, checksum, first.decode("latin-1")]

    def urge(self, number: int, text: str) -> None:
        """Send bytes of which the last one is urgent."""
        self.sockets[number].send(text.encode(), socket.MSG_OOB)

    def shut(self, number: int) -> None:
        self.sockets[number].shutdown(socket.SHUT_WR)

    def close(self, number: int) -> None:
        self.sockets.pop(number).close()

    def finish(self) -> None:
        for number in list(self.sockets):
            self.close(number)


def main(address: str) -> None:
    """Serve until standard input ends."""
    program = Program(address)
    lock = threading.Lock()

    def serve(number: int, name: str, arguments: dict[str, Any]) -> None:
        answer: list[Any] = [number, None, None]
        try:
            answer[1] = getattr(program, name)(**arguments)
        except Exception as error:
            answer[2] = f"{type(error).__name__}: {error}"
        with lock:
            sys.stdout.write(json.dumps(answer) + "\r\n")
            sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=serve, args=json.loads(line), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
