"""A strategy of paths for property tests, and an end port with which targets are resolved."""

from __future__ import annotations

from hypothesis import strategies as st

from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, MTU

LOCAL = GID.fromString("fe80::1")
REMOTE = GID.fromString("fe80::2")
END_PORT = MADEndPort(GUID.fromInt(1), (LOCAL,), lid=LID(3), smLID=LID(9), smServiceLevel=2)

gids = st.builds(GID, st.binary(min_size=16, max_size=16))
lids = st.integers(0, 0xFFFF)
headers = {
    "slid": lids,
    "dlid": lids,
    "serviceLevel": st.integers(0, 15),
    "sgid": st.none() | gids,
    "dgid": st.none() | gids,
    "trafficClass": st.integers(0, 255),
    "flowLabel": st.integers(0, (1 << 20) - 1),
    "hopLimit": st.integers(0, 255),
    "pkey": st.integers(0, 0xFFFF),
    "dqpn": st.integers(0, 0xFFFFFF),
    "sqpsn": st.integers(0, 0xFFFFFF),
    "qkey": st.integers(0, 0xFFFFFFFF),
    "sqpn": st.integers(0, 0xFFFFFF),
    "minRNRTimer": st.integers(0, 31),
    "mtu": st.none() | st.sampled_from(MTU),
    "packetLifeTime": st.none() | st.integers(0, 63),
    "responseTime": st.none() | st.integers(0, 31),
    "reversible": st.booleans(),
}
routes = st.lists(st.integers(1, 254), max_size=63).map(tuple)
paths = st.builds(IBPath, **headers)
