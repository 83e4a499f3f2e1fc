"""
Capture files of RoCE datagrams.
"""

from __future__ import annotations

from io import BytesIO

from txrdma.iba.pcap import Place, RoCECapture


def recorded(*sent: tuple[Place, Place, bytes]) -> bytes:
    """A capture file of these packets, a millisecond apart."""
    out = BytesIO()
    capture = RoCECapture(out)
    for number, (source, destination, packet) in enumerate(sent):
        capture.packet(source, destination, packet, 1700000000 + number / 1000)
    return out.getvalue()
