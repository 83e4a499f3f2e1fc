"""
Captures of what network interfaces send while something happens.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from txrdma.iba.pcap import PcapReader, PcapWriter, Record
from txrdma.iba.types import ROCE_PORT

_SIOCETHTOOL, _SET_TX_CHECKSUM = 0x8946, 0x17


class Recording:
    """
    TCP and RoCE v2 that network interfaces send, by a tcpdump for each, from now on until L{end}.

    Only what they send: Linux leaves rxe's packets the time of their sender's clock where they arrive. TCP's
    checksums are made by software from now on, so that the captures have true ones.
    """

    def __init__(self, interfaces: Sequence[str], folder: Path) -> None:
        """@param folder: for the parts."""
        self._dumps = []
        for interface in interfaces:
            _sumInSoftware(interface)
            path = folder / f"{interface}.pcap"
            words = ["tcpdump", "-Z", "root", "-i", interface, "-Q", "out", "--immediate-mode", "-U"]
            words += ["-w", str(path), "tcp", "or", "udp", "port", str(ROCE_PORT)]
            process = subprocess.Popen(words, stderr=subprocess.PIPE)
            self._dumps.append((process, path))
            assert process.stderr is not None
            process.stderr.readline()  # "listening on ...": what comes from now on is there

    def end(self, path: Path) -> None:
        """End the recording, and write what all the interfaces have sent into one capture file, by time."""
        with ExitStack() as files:
            records: list[Record] = []
            for process, part in self._dumps:
                process.terminate()
                process.communicate()
                records += PcapReader(files.enter_context(open(part, "rb")))
            writer = PcapWriter(files.enter_context(open(path, "wb")), nanoseconds=False)
            for record in sorted(records, key=lambda record: record.when):
                writer.write(record.data, record.when)


def _sumInSoftware(interface: str) -> None:
    """Have Linux make TCP's checksums itself, which a veth pair leaves out otherwise."""
    command = ctypes.create_string_buffer(struct.pack("=II", _SET_TX_CHECKSUM, 0))
    request = struct.pack("16sQ16x", interface.encode(), ctypes.addressof(command))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anyOne:
        fcntl.ioctl(anyOne, _SIOCETHTOOL, request)
