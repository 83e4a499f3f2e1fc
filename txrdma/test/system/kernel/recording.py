"""
Captures of the packets that network interfaces send.
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

from txrdma.iba.captures import Captured, captured
from txrdma.iba.pcap import PcapWriter
from txrdma.iba.types import ROCE_PORT

_SIOCETHTOOL, _SET_TX_CHECKSUM = 0x8946, 0x17


class Recording:
    """
    Records TCP and RoCE v2 packets that network interfaces send, with one tcpdump each, until L{end}.

    Only sent packets are recorded: received rxe packets carry the sender's timestamps in Linux. Software
    computes TCP checksums meanwhile, so that the captures have correct ones.
    """

    def __init__(self, interfaces: Sequence[str], folder: Path) -> None:
        """@param folder: for the captures of the interfaces."""
        self._dumps = []
        for interface in interfaces:
            _sumInSoftware(interface)
            path = folder / f"{interface}.pcap"
            words = ["tcpdump", "-Z", "root", "-i", interface, "-Q", "out", "--immediate-mode", "-U"]
            words += ["-w", str(path), "tcp", "or", "udp", "port", str(ROCE_PORT)]
            process = subprocess.Popen(words, stderr=subprocess.PIPE)
            self._dumps.append((process, path))
            assert process.stderr is not None
            process.stderr.readline()  # "listening on ...": later packets are recorded

    def end(self, path: Path) -> None:
        """End the recording, and merge the captures of all interfaces into one file, sorted by time."""
        with ExitStack() as files:
            records: list[Captured] = []
            for process, part in self._dumps:
                process.terminate()
                process.communicate()
                records += captured(files.enter_context(open(part, "rb")))
            writer = PcapWriter(files.enter_context(open(path, "wb")), nanoseconds=False)
            for record in sorted(records, key=lambda record: record.when):
                writer.write(record.data, record.when)


def _sumInSoftware(interface: str) -> None:
    """Have Linux compute TCP checksums in software, which a veth pair omits by default."""
    command = ctypes.create_string_buffer(struct.pack("=II", _SET_TX_CHECKSUM, 0))
    request = struct.pack("16sQ16x", interface.encode(), ctypes.addressof(command))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anyOne:
        fcntl.ioctl(anyOne, _SIOCETHTOOL, request)
