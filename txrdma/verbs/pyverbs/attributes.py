"""
Attributes of queue pairs and paths, converted to those of libibverbs and back.

Follows InfiniBand Architecture vol. 1, 11.2.4.2; the bits are those of C{ibv_qp_attr_mask(3)}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from txrdma.error import InvalidRequest
from txrdma.iba.types import GID, LID, MTU, QPN
from txrdma.iba.verbs import Access, AddressVector, MigrationState, QPAttributes, QPState
from txrdma.verbs.pyverbs.bindings import Pyverbs

STATE: Final = 1 << 0
SQD_NOTIFY: Final = 1 << 2
EVERYTHING: Final = (1 << 21) - 1

_PORT_LIMIT: Final = 255


class _Word(NamedTuple):
    """A numeric attribute: its bit, its name in pyverbs, its maximum, its type in txrdma, and its minimum."""

    bit: int
    name: str
    most: int
    made: Callable[[int], Any]
    least: int = 0


_WORDS: Final = {
    "state": _Word(1 << 0, "qp_state", 6, QPState),
    "currentState": _Word(1 << 1, "cur_qp_state", 6, QPState),
    "access": _Word(1 << 3, "qp_access_flags", 15, Access),
    "pkeyIndex": _Word(1 << 4, "pkey_index", 0xFFFF, int),
    "port": _Word(1 << 5, "port_num", _PORT_LIMIT, int),
    "qkey": _Word(1 << 6, "qkey", 0xFFFFFFFF, int),
    "pathMTU": _Word(1 << 8, "path_mtu", 5, MTU, 1),
    "timeout": _Word(1 << 9, "timeout", 31, int),
    "retryCount": _Word(1 << 10, "retry_cnt", 7, int),
    "rnrRetry": _Word(1 << 11, "rnr_retry", 7, int),
    "rqPSN": _Word(1 << 12, "rq_psn", 0xFFFFFF, int),
    "maxRDAtomic": _Word(1 << 13, "max_rd_atomic", 255, int),
    "minRNRTimer": _Word(1 << 15, "min_rnr_timer", 31, int),
    "sqPSN": _Word(1 << 16, "sq_psn", 0xFFFFFF, int),
    "maxDestRDAtomic": _Word(1 << 17, "max_dest_rd_atomic", 255, int),
    "migrationState": _Word(1 << 18, "path_mig_state", 2, MigrationState),
    "destinationQPN": _Word(1 << 20, "dest_qp_num", 0xFFFFFF, QPN),
}
_ADDRESS: Final = 1 << 7
_ALTERNATE: Final = 1 << 14


def toPyverbs(verbs: Pyverbs, attributes: QPAttributes) -> tuple[Any, int]:
    """
    Return the attributes for pyverbs, and the mask of set ones; the kernel checks the combination.

    @raise InvalidRequest: a value is out of range.
    """
    attr = verbs.QPAttr()
    mask = 0
    given = attributes.given()
    for name, (bit, field, most, _made, least) in _WORDS.items():
        if name in given:
            value = getattr(attributes, name)
            if not least <= value <= most:
                raise InvalidRequest(f"{name} is {value}, not from {least} to {most}")
            setattr(attr, field, int(value))
            mask |= bit
    if attributes.address is not None:
        attr.ah_attr = addressToPyverbs(verbs, attributes.address)
        mask |= _ADDRESS
    if attributes.alternateAddress is not None:
        attr.alt_ah_attr = addressToPyverbs(verbs, attributes.alternateAddress)
        attr.alt_port_num = attributes.alternateAddress.port
        attr.alt_pkey_index = _within("alternatePKeyIndex", attributes.alternatePKeyIndex or 0, 0xFFFF)
        attr.alt_timeout = _within("alternateTimeout", attributes.alternateTimeout or 0, 31)
        mask |= _ALTERNATE
    elif given & {"alternateTimeout", "alternatePKeyIndex"}:
        raise InvalidRequest("alternateTimeout and alternatePKeyIndex need alternateAddress")
    if attributes.state is QPState.SQD:
        attr.en_sqd_async_notify = 1
        mask |= SQD_NOTIFY
    return attr, mask


def fromPyverbs(attr: Any, names: frozenset[str]) -> QPAttributes:
    """Return the attributes with these names."""
    values: dict[str, Any] = {}
    for name, word in _WORDS.items():
        if name in names:
            values[name] = word.made(getattr(attr, word.name))
    if "address" in names:
        values["address"] = addressFromPyverbs(attr.ah_attr)
    if "alternateAddress" in names:
        values["alternateAddress"] = addressFromPyverbs(attr.alt_ah_attr, attr.alt_port_num)
        values["alternatePKeyIndex"] = attr.alt_pkey_index
        values["alternateTimeout"] = attr.alt_timeout
    return QPAttributes(**values)


def addressToPyverbs(verbs: Pyverbs, address: AddressVector) -> Any:
    """
    Return the address of a port, without the next hop's MAC address, which the kernel resolves.

    Without a destination GID it has no GRH, as on InfiniBand.
    """
    hasGRH = address.dgid != GID.fromBytes(bytes(16))
    route = None
    if hasGRH:
        route = verbs.GlobalRoute(
            dgid=verbs.GID(gidText(address.dgid)),
            flow_label=_within("flowLabel", address.flowLabel, 0xFFFFF),
            sgid_index=_within("sgidIndex", address.sgidIndex, 0xFF),
            hop_limit=_within("hopLimit", address.hopLimit, 0xFF),
            traffic_class=_within("trafficClass", address.trafficClass, 0xFF),
        )
    return verbs.AHAttr(
        dlid=_within("dlid", address.dlid, 0xFFFF),
        sl=_within("serviceLevel", address.serviceLevel, 15),
        src_path_bits=_within("sourcePathBits", address.sourcePathBits, 0x7F),
        is_global=int(hasGRH),
        port_num=_within("port", address.port, _PORT_LIMIT),
        gr=route,
    )


def addressFromPyverbs(attr: Any, port: int | None = None) -> AddressVector:
    """Convert an address of pyverbs to an address vector."""
    port = attr.port_num if port is None else port
    if not attr.is_global:
        return AddressVector(
            GID.fromBytes(bytes(16)),
            port=port,
            serviceLevel=attr.sl,
            dlid=LID(attr.dlid),
            sourcePathBits=attr.src_path_bits,
            hopLimit=0,
        )
    return AddressVector(
        GID.fromBytes(bytes.fromhex(attr.dgid.replace(":", ""))),
        sgidIndex=attr.sgid_index,
        port=port,
        hopLimit=attr.hop_limit,
        trafficClass=attr.traffic_class,
        flowLabel=attr.flow_label,
        serviceLevel=attr.sl,
        dlid=LID(attr.dlid),
        sourcePathBits=attr.src_path_bits,
    )


def gidText(gid: GID) -> str:
    """Return a GID as text for pyverbs: eight groups of four digits."""
    digits = gid.toBytes().hex()
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


def _within(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise InvalidRequest(f"{name} is {value}, not from 0 to {most}")
    return int(value)
