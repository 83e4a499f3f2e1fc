"""
Values of CLC messages, and Hypothesis strategies for them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from txrdma.iba.types import GID, MACAddress, QPN, RKey

END: dict[str, Any] = {
    "qpn": QPN(5),
    "rkey": RKey(7),
    "index": 1,
    "token": 99,
    "sizeCode": 2,
    "mtu": 3,
    "address": 4096,
    "psn": 77,
}
"""The part of an Accept or Confirm that describes an end of a connection."""

gids = st.binary(min_size=16, max_size=16).map(GID)
macs = st.binary(min_size=6, max_size=6).map(MACAddress)
ids = st.binary(min_size=8, max_size=8)
octets = st.integers(0, 255)


ends = {
    "peerID": ids,
    "gid": gids,
    "mac": macs,
    "qpn": st.integers(0, 0xFFFFFF).map(QPN),
    "rkey": st.integers(0, 0xFFFFFFFF).map(RKey),
    "index": octets,
    "token": st.integers(0, 0xFFFFFFFF),
    "sizeCode": st.integers(0, 15),
    "mtu": st.integers(0, 15),
    "address": st.integers(0, (1 << 64) - 1),
    "psn": st.integers(0, 0xFFFFFF),
}
