"""
A queue of records on disk that is limited in size, and survives the process.

Each record is a file of its own, which begins with a checksum of its content. So a record is removed without
copying others, and one that a crash of the host has left incomplete is found.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from txrdma.error import DeviceUnavailable
from txrdma.kit.logs import reasonText

_NAME: Final = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})\.record", re.ASCII)
_INCOMPLETE: Final = "incomplete"
_CHECKSUM_OCTETS: Final = 4

BLOCK_OCTETS: Final = 4096
"""Octets of which a file occupies a multiple."""


class SpoolRecord(NamedTuple):
    """
    A record in a spool.

    @ivar number: position in the queue.
    @ivar items: number of items in the record.
    @ivar at: time of the record, in seconds since 1970.
    @ivar octets: octets that it occupies on disk.
    """

    number: int
    items: int
    at: int
    octets: int

    @property
    def name(self) -> str:
        return f"{self.number:012}-{self.items}-{self.at}.record"


class Spool:
    """
    Queue of records in a folder, which no other process can open meanwhile. Its methods block.

    @ivar records: records from the oldest to the latest.
    @ivar items: number of items in all of them; C{octets}: octets that they occupy on disk.
    """

    def __init__(self, folder: str, mostOctets: int) -> None:
        """
        @param folder: path of the folder, which is created if necessary.
        @param mostOctets: octets beyond which the oldest records are dropped.
        @raise DeviceUnavailable: the folder cannot be used, or another process uses it.
        """
        self.records: deque[SpoolRecord] = deque()
        self.items = self.octets = 0
        self._folder = Path(folder)
        self._most = mostOctets
        with self._translated(), ExitStack() as undo:
            # Who can open the folder can lock it.
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            undo.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for record in sorted(self._found()):
                self._add(record)
            self._release = undo.pop_all().close

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise DeviceUnavailable(f"{self._folder}: another process uses it") from error
        except OSError as error:
            raise DeviceUnavailable(f"{self._folder}: {reasonText(error)}") from error

    def _found(self) -> Iterator[SpoolRecord]:
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None:
                number, items, at = map(int, match.groups())
                yield SpoolRecord(number, items, at, _onDisk(path.stat().st_size))

    def append(self, content: bytes, items: int, at: int) -> list[SpoolRecord]:
        """
        Append a record, and return the oldest ones, which were dropped for it.

        @raise DeviceUnavailable: the disk is full, or cannot be written; the record is not appended, but
            others may have been dropped for it, as C{items} shows.
        """
        number = self.records[-1].number + 1 if self.records else 1
        record = SpoolRecord(number, items, at, _onDisk(_CHECKSUM_OCTETS + len(content)))
        dropped: list[SpoolRecord] = []
        while self.records and self.octets + record.octets > self._most:
            dropped.append(self.records[0])
            self.remove(self.records[0])
        if record.octets > self._most:
            return [*dropped, record]
        incomplete = self._folder / _INCOMPLETE
        with self._translated():
            try:
                incomplete.write_bytes(_checksum(content) + content)
                incomplete.rename(self._folder / record.name)
            except OSError:
                with suppress(OSError):
                    incomplete.unlink()
                raise
        self._add(record)
        return dropped

    def _add(self, record: SpoolRecord) -> None:
        self.records.append(record)
        self.items += record.items
        self.octets += record.octets

    def read(self, record: SpoolRecord) -> bytes | None:
        """
        Return the content of a record; None if the file is damaged or missing.

        @raise DeviceUnavailable: the disk cannot be read.
        """
        with self._translated():
            try:
                stored = (self._folder / record.name).read_bytes()
            except FileNotFoundError:
                return None
        content = stored[_CHECKSUM_OCTETS:]
        return content if stored[:_CHECKSUM_OCTETS] == _checksum(content) else None

    def remove(self, record: SpoolRecord) -> None:
        """
        Remove a record from the queue.

        @raise DeviceUnavailable: its file cannot be removed; the next process finds it again.
        """
        self.records.remove(record)
        self.items -= record.items
        self.octets -= record.octets
        with self._translated():
            (self._folder / record.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes open the folder. Idempotent."""
        self._release()


def _onDisk(octets: int) -> int:
    return -(-octets // BLOCK_OCTETS) * BLOCK_OCTETS


def _checksum(content: bytes) -> bytes:
    return crc32(content).to_bytes(_CHECKSUM_OCTETS, "big")
