"""
Paths from one end port to another, by the fields of packet headers.

Follows InfiniBand Architecture vol. 1, chapters 7 (local route), 8 (global route) and 9 (transport).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from typing_extensions import Self

from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, LID, MTU, PKey, QPN
from txrdma.kit.values import frozen, replace

PERMISSIVE_LID: Final = LID(0xFFFF)
"""The permissive LID: of both ends of a directed route without LID-routed parts (IBA 4.1.3)."""

GMP_QKEY: Final = 0x80010000
"""The Q_Key of queue pair 1 (IBA 10.2.5)."""

SUBNET_TIMEOUT: Final = 18
"""Default packet lifetime, encoded: 1.07 seconds (IBA 14.2.5.6)."""

RESPONSE_TIME: Final = 16
"""Default response time of agents, encoded: 0.27 seconds."""

_LONGEST: Final = 31


def lifetimeSeconds(code: int) -> float:
    """Decode a 5-bit time to seconds: 4.096 microseconds times two to the power of the code."""
    return 4.096e-6 * (1 << code)


@frozen
class IBPath:
    """
    Path of packets in one direction: the values of their headers.

    A path for sending has the values to send; the path of a received packet has the received values.

    @ivar slid: field of the LRH, like C{dlid} and C{serviceLevel}.
    @ivar sgid: field of the GRH, like C{dgid}, C{trafficClass}, C{flowLabel} and C{hopLimit}; no GRH without
        C{dgid}.
    @ivar pkey: field of the BTH, like C{dqpn} and C{sqpsn}.
    @ivar qkey: field of the DETH, like C{sqpn}.
    @ivar minRNRTimer: encoded RNR timer of an AETH.
    @ivar packetLifeTime: encoded maximum lifetime of packets; None if unknown.
    @ivar reversible: packets can be sent back along the same path.
    @ivar responseTime: encoded maximum response time of the other end.
    """

    slid: LID = LID(0)
    dlid: LID = LID(0)
    serviceLevel: int = 0
    sgid: GID | None = None
    dgid: GID | None = None
    trafficClass: int = 0
    flowLabel: int = 0
    hopLimit: int = 0
    pkey: PKey = DEFAULT_PKEY
    dqpn: QPN = QPN(0)
    sqpsn: int = 0
    qkey: int = 0
    sqpn: QPN = QPN(0)
    minRNRTimer: int = 0
    mtu: MTU | None = None
    packetLifeTime: int | None = None
    reversible: bool = True
    responseTime: int | None = None

    _hasPortLID: ClassVar[bool] = True
    """Whether packets have the LID of the port that they leave, or reach."""

    @classmethod
    def fromPort(
        cls,
        endPort: MADEndPort,
        *,
        pkeyIndex: int | None = None,
        gidIndex: int | None = None,
        lidBits: int | None = None,
        **values: Any,
    ) -> Self:
        """
        Return a path of packets that this port sends; entries of its tables may be given by index.

        @param pkeyIndex: index of C{pkey}, instead of its value.
        @param gidIndex: index of C{sgid}, instead of its value.
        @param lidBits: path bits, the low bits of C{slid} (IBA 7.11.1), instead of C{slid}.
        @param values: other fields, by name.
        @raise ValueError: the port has no such entry, or a value does not fit into its field.
        """
        return cls(**_valuesAtPort(cls, endPort, "s", pkeyIndex, gidIndex, lidBits, values))

    @classmethod
    def toPort(
        cls,
        endPort: MADEndPort,
        *,
        pkeyIndex: int | None = None,
        gidIndex: int | None = None,
        lidBits: int | None = None,
        **values: Any,
    ) -> Self:
        """Return a path of packets that this port receives; indices are of C{pkey}, C{dgid} and C{dlid}."""
        return cls(**_valuesAtPort(cls, endPort, "d", pkeyIndex, gidIndex, lidBits, values))

    def __str__(self) -> str:
        """Fields that differ from the default, as text for L{fromString}: C{"lid 7 sl 1 dqpn 1"}."""
        return " ".join(self._words(_DEFAULT)) or "lid 0"

    def __repr__(self) -> str:
        """Fields that differ from the default, as a Python expression, which L{fromString} accepts, too."""
        default = type(self)()
        given = (
            f"{name}={'MTU.' + value.name if isinstance(value, MTU) else repr(value)}"
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) != getattr(default, name)
        )
        return f"{type(self).__name__}({', '.join(given)})"

    @classmethod
    def fromString(cls, text: str) -> Self:
        """
        Parse the output of C{str}, keywords with their values in any order, or the output of C{repr}.

        @raise ValueError: a keyword or a value is invalid.
        """
        if "(" in text:
            path = _parseRepr(text)
            if not isinstance(path, cls):
                raise ValueError(f"{text!r} is not a valid {cls.__name__}")
            return path
        return cls(**_parseWords(text.split(), text))

    @property
    def hasGRH(self) -> bool:
        """Whether packets carry a global route header."""
        return self.dgid is not None

    def reverse(self) -> Self:
        """
        The path in the opposite direction.

        @raise ValueError: this path is not reversible: resolve the opposite path.
        """
        if not self.reversible:
            raise ValueError("this path is not reversible")
        return replace(
            self,
            slid=self.dlid,
            dlid=self.slid,
            sgid=self.dgid,
            dgid=self.sgid,
            dqpn=self.sqpn,
            sqpn=self.dqpn,
        )

    # Indices in the tables of a port, which may change: they are not cached.

    def pkeyIndexAt(self, endPort: MADEndPort) -> int:
        """Index of C{pkey} in the table of this port; C{ValueError} if it does not contain it."""
        return _indexOf(endPort.pkeys, self.pkey, f"P_Key {self.pkey:#06x}")

    def sgidIndexAt(self, endPort: MADEndPort) -> int:
        """Index of C{sgid} in the table of this port; C{ValueError} if it does not contain it."""
        return _indexOf(endPort.gids, self.sgid, f"GID {self.sgid}")

    def dgidIndexAt(self, endPort: MADEndPort) -> int:
        """Index of C{dgid} in the table of this port; C{ValueError} if it does not contain it."""
        return _indexOf(endPort.gids, self.dgid, f"GID {self.dgid}")

    def slidBitsAt(self, endPort: MADEndPort) -> int:
        """Path bits of C{slid} at this port; C{ValueError} if it is not a LID of the port."""
        return _bitsOf(endPort, self.slid)

    def dlidBitsAt(self, endPort: MADEndPort) -> int:
        """Path bits of C{dlid} at this port; C{ValueError} if it is not a LID of the port."""
        return _bitsOf(endPort, self.dlid)

    # Times.

    @property
    def packetLifeTimeSeconds(self) -> float:
        """Maximum lifetime of packets in seconds; the default if unknown."""
        return lifetimeSeconds(SUBNET_TIMEOUT if self.packetLifeTime is None else self.packetLifeTime)

    @property
    def madTimeoutSeconds(self) -> float:
        """Time-out of a request in seconds: lifetime of both packets plus response time (IBA 13.4.6.2)."""
        response = RESPONSE_TIME if self.responseTime is None else self.responseTime
        return 2 * self.packetLifeTimeSeconds + lifetimeSeconds(response)

    def qpTimeout(self, ackDelay: int = 0) -> int:
        """
        Encoded timeout of a queue pair: at least twice the lifetime, plus the delay (IBA 9.7.6.1.3).

        @param ackDelay: encoded time in which the other port acknowledges; 0 is almost none.
        """
        life = SUBNET_TIMEOUT if self.packetLifeTime is None else self.packetLifeTime
        least = (2 << life) + (1 << ackDelay if ackDelay else 0)
        return min(_LONGEST, (least - 1).bit_length())

    def _words(self, default: IBPath) -> list[str]:
        """The keywords and values of fields that differ from the default."""
        given = [
            f"{word} {each.write(value)}"
            for word, each in _WORDS.items()
            if hasattr(self, each.name) and (value := getattr(self, each.name)) != getattr(default, each.name)
        ]
        return given if self.reversible else [*given, "one-way"]


@frozen
class IBDRPath(IBPath):
    """
    A directed route: the output port at each hop (IBA 14.2.2).

    An answer takes the same route back, by the datagram's direction bit: C{reverse} does not change the
    route.

    @ivar drPath: output ports from the first hop on; empty for the local port.
    @ivar drSLID: source LID of a LID-routed part before the directed one; C{drDLID}: destination of one after
        it.
    """

    slid: LID = PERMISSIVE_LID
    dlid: LID = PERMISSIVE_LID
    drPath: tuple[int, ...] = ()
    drSLID: LID = PERMISSIVE_LID
    drDLID: LID = PERMISSIVE_LID

    _hasPortLID: ClassVar[bool] = False

    def __str__(self) -> str:
        """C{"DR 0,1,3"}: a 0 and the output ports; then keywords, as for other paths."""
        return " ".join(("DR " + ",".join(map(str, (0, *self.drPath))), *self._words(_DEFAULT_ROUTE)))

    @classmethod
    def fromString(cls, text: str) -> Self:
        """
        Read C{"DR 0,1,3"}, or C{"0,1,3"}, with keywords for other fields; or parse the output of C{repr}.

        @raise ValueError: the text is not a directed route.
        """
        if "(" in text:
            return super(IBDRPath, cls).fromString(text)  # noqa: UP008  # slots make a second class of it
        given = text.removeprefix("DR").removeprefix("dr").strip(" ,").replace(", ", ",")
        route, *words = given.split() or [""]
        try:
            first, *hops = [int(hop) for hop in route.split(",")]
            if first or not all(0 < hop < 255 for hop in hops):
                raise ValueError
        except ValueError:
            raise ValueError(f"{text!r} is not a directed route, such as DR 0,1,3: a 0, then ports") from None
        return cls(**_parseWords(words, text, isRoute=True), drPath=tuple(hops))

    def then(self, port: int) -> Self:
        """Append a hop through this output port."""
        return replace(self, drPath=(*self.drPath, port))


_DEFAULT: Final = IBPath()
_DEFAULT_ROUTE: Final = IBDRPath()


@frozen
class MADEndPort:
    """
    Attributes of the local port for senders of management datagrams.

    @ivar lidMask: LMC: number of low bits of the LID that the port may choose.
    @ivar subnetTimeout: encoded maximum lifetime of packets in the subnet (IBA 14.2.5.6).
    @ivar names: names of the port in the system: C{mlx5_0/1}, the network interface.
    @ivar qpn: queue pair that receives requests: 1, unless the port has a dedicated one.
    """

    portGUID: GUID
    gids: tuple[GID, ...]
    portNum: int = 1
    lid: LID = LID(0)
    lidMask: int = 0
    smLID: LID = LID(0)
    smServiceLevel: int = 0
    pkeys: tuple[PKey, ...] = (DEFAULT_PKEY,)
    subnetTimeout: int = SUBNET_TIMEOUT
    names: tuple[str, ...] = ()
    qpn: QPN = QPN(1)

    def senderOf(self, path: IBPath) -> Hashable:
        """
        Return the identity of the sender of a received packet, for limits of one peer.

        It is the LID without path bits, which the sender's adapter writes, since a program can choose among
        many GIDs; on RoCE, where packets have no LID, it is the GID. A host that may send arbitrary packets
        can forge both. Hosts of another subnet count as one, by the LID of their router, and so do all
        senders of directed-route SMPs.
        """
        if self.lid and path.slid:
            return path.slid >> self.lidMask
        return path.sgid or path.slid

    def isCalled(self, name: str) -> bool:
        """Whether the port has this name, port GUID or GID."""
        if name in self.names:
            return True
        for read, known in ((GUID.fromString, (self.portGUID,)), (GID.fromString, self.gids)):
            try:
                return read(name) in known
            except ValueError:
                continue
        return False


# Ports' tables.


def _valuesAtPort(
    kind: type[IBPath],
    endPort: MADEndPort,
    side: str,
    pkeyIndex: int | None,
    gidIndex: int | None,
    lidBits: int | None,
    values: dict[str, Any],
) -> dict[str, Any]:
    """The values of a path from (C{"s"}) or to (C{"d"}) this port."""
    found: dict[str, Any] = {"packetLifeTime": endPort.subnetTimeout}
    if kind._hasPortLID:
        found[f"{side}lid"] = endPort.lid
    indexed: list[tuple[str, Any]] = []
    if pkeyIndex is not None:
        indexed.append(("pkey", _entry(endPort.pkeys, pkeyIndex, "P_Key")))
    if gidIndex is not None:
        indexed.append((f"{side}gid", _entry(endPort.gids, gidIndex, "GID")))
    if lidBits is not None:
        if not 0 <= lidBits < 1 << endPort.lidMask:
            raise ValueError(f"LID bits of this port are below {1 << endPort.lidMask}, not {lidBits}")
        indexed.append((f"{side}lid", _baseOf(endPort) | lidBits))
    for name, value in indexed:
        if name in values:
            raise ValueError(f"{name} is given both by value and by index")
        found[name] = value
    found.update(values)
    return _checked(found)


def _entry(table: tuple[Any, ...], index: int, what: str) -> Any:
    if not 0 <= index < len(table):
        raise ValueError(f"this port has {len(table)} entries in its {what} table, and none at {index}")
    return table[index]


def _indexOf(table: tuple[Any, ...], value: object, what: str) -> int:
    try:
        return table.index(value)
    except ValueError:
        raise ValueError(f"this port has no {what}") from None


def _baseOf(endPort: MADEndPort) -> int:
    """Return the LID of a port without its path bits."""
    return endPort.lid & -1 << endPort.lidMask


def _bitsOf(endPort: MADEndPort, lid: int) -> int:
    bits = lid - _baseOf(endPort)
    if not 0 <= bits < 1 << endPort.lidMask:
        raise ValueError(f"{lid} is not a LID of this port")
    return bits


# Text.


class _Word(NamedTuple):
    """A keyword of a path's text, with the conversions of its value."""

    name: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _number(text: str) -> int:
    return int(text, 0)


def _mtu(text: str) -> MTU:
    return MTU.fitting(_number(text))


_WORDS: Final = {
    "lid": _Word("dlid", str, _number),
    "slid": _Word("slid", str, _number),
    "drslid": _Word("drSLID", str, _number),
    "drdlid": _Word("drDLID", str, _number),
    "sl": _Word("serviceLevel", str, _number),
    "dgid": _Word("dgid", str, GID.fromString),
    "sgid": _Word("sgid", str, GID.fromString),
    "tclass": _Word("trafficClass", str, _number),
    "flow": _Word("flowLabel", hex, _number),
    "hops": _Word("hopLimit", str, _number),
    "pkey": _Word("pkey", hex, _number),
    "dqpn": _Word("dqpn", str, _number),
    "sqpn": _Word("sqpn", str, _number),
    "psn": _Word("sqpsn", str, _number),
    "qkey": _Word("qkey", hex, _number),
    "rnr": _Word("minRNRTimer", str, _number),
    "mtu": _Word("mtu", lambda mtu: str(mtu.bytes), _mtu),
    "life": _Word("packetLifeTime", str, _number),
    "response": _Word("responseTime", str, _number),
}

_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("slid", "dlid", "drSLID", "drDLID", "pkey"), 16),
    **dict.fromkeys(("dqpn", "sqpn", "sqpsn"), 24),
    **dict.fromkeys(("trafficClass", "hopLimit"), 8),
    **dict.fromkeys(("minRNRTimer", "responseTime"), 5),
    "serviceLevel": 4,
    "flowLabel": 20,
    "qkey": 32,
    "packetLifeTime": 6,
}
"""The width of each number in its header, in bits."""

_ROUTE_FIELDS: Final = ("drSLID", "drDLID", "drPath")


def _parseWords(words: Iterable[str], text: str, isRoute: bool = False) -> dict[str, Any]:
    """Parse the words of a path's text; C{ValueError} if it is invalid."""
    values: dict[str, Any] = {}
    rest = iter(words)
    for given in rest:
        word = given.lower()
        if word == "one-way":
            values["reversible"] = False
            continue
        known = _WORDS.get(word)
        if known is None or (known.name in _ROUTE_FIELDS and not isRoute):
            raise ValueError(f"{given!r} is not a keyword of a path; these are {', '.join(_WORDS)}")
        value = next(rest, None)
        if value is None:
            raise ValueError(f"{word} has no value in {text!r}")
        values[known.name] = known.read(value)
    return _checked(values)


_UNREADABLE: Final = (SyntaxError, RecursionError, MemoryError)
"""Exceptions of Python's parser, depending on the nesting depth of its input."""


_MOST_CHARACTERS: Final = 4096
"""Maximum length of a C{repr}, more than any path has: Python 3.10 overflows its stack with a million."""


def _parseRepr(text: str) -> IBPath:
    """Parse a C{repr}, also with the names of python-rdma, as C{IBPath(DLID=7)}; C{ValueError} if invalid."""
    kinds = {"IBPath": IBPath, "IBDRPath": IBDRPath}
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"{text[:20]!r}... is not a path: it has {len(text)} characters")
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        kind = kinds[ast.unparse(call.func).rpartition(".")[2]]
        values = {}
        for given in call.keywords:
            name = _fieldOf(kind, given.arg or "")
            values[name] = _literal(name, given.value)
        return kind(**_checked(values))
    except (*_UNREADABLE, KeyError, AttributeError, TypeError, ValueError) as error:
        reason = f": {error}" if str(error) else ""
        raise ValueError(f"{text!r} is not a path, such as IBPath(dlid=7){reason}") from None


def _fieldOf(kind: type[IBPath], name: str) -> str:
    """Return the name of the field with a python-rdma name, such as C{SL} or C{dlid}."""
    plain = name.replace("_", "").lower()
    if plain == "sl":
        return "serviceLevel"
    for field in kind.__dataclass_fields__:
        if field.lower() == plain:
            return field
    raise ValueError(f"there is no field {name}")


def _literal(name: str, value: ast.expr) -> Any:
    """Return the value of an expression, without evaluating it."""
    if isinstance(value, ast.Call):  # GID.fromString("...")
        (value,) = value.args
    if isinstance(value, ast.Attribute):  # MTU.MTU_2048
        return MTU[value.attr]
    given = ast.literal_eval(value)
    if name in ("sgid", "dgid") and isinstance(given, str):
        return GID.fromString(given)
    return tuple(given) if name == "drPath" else given


def _hasFieldType(name: str, value: object) -> bool:
    """Whether a value has the type of the field."""
    if name == "drPath":
        return isinstance(value, tuple) and all(type(hop) is int for hop in value)
    if value is None:
        return name in ("sgid", "dgid", "mtu", "packetLifeTime", "responseTime")
    if name == "reversible":
        return isinstance(value, bool)
    kind = {"sgid": GID, "dgid": GID, "mtu": MTU}.get(name, int)
    return isinstance(value, kind) and not isinstance(value, bool)


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values; C{ValueError} if one does not fit into its field."""
    for name, value in values.items():
        bits = _BITS.get(name)
        if not _hasFieldType(name, value):
            raise ValueError(f"{name} cannot be {value!r}")
        if bits is not None and value is not None and not 0 <= value < 1 << bits:
            raise ValueError(f"{name} has {bits} bits, so it cannot be {value}")
    if not all(0 < hop < 255 for hop in values.get("drPath", ())):
        raise ValueError("ports of a directed route are from 1 to 254")
    return values
