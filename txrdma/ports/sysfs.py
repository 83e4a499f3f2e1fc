"""
RDMA devices and their ports in sysfs.

Follows the kernel's description of C{/sys/class/infiniband}: Documentation/ABI/stable/sysfs-class-infiniband.
Nothing is cached: every attribute is read on access. Values that a kernel or a driver does not report are
None, zero or empty; a removed device raises L{DeviceUnavailable}.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, GUID, LID, MACAddress, MTU, PKey
from txrdma.iba.verbs import GIDEntry, GIDType, LinkLayer, NodeType, PhysicalState, PortState
from txrdma.kit.logs import advised
from txrdma.kit.strings import naturalKey
from txrdma.kit.values import frozen

SYS: Final = Path("/sys")

_NO_GID: Final = GID(bytes(16))
_NO_GID_TEXT: Final = ":".join(["0000"] * 8)
_NO_ENTRY: Final = GIDEntry(_NO_GID, GIDType.INFINIBAND)
_PAGE: Final = 4096
_RATE: Final = re.compile(r"([0-9.]+) Gb/sec(?: \((\d+)X ?(\w*)\))?")
_ROCE_OVERHEAD: Final = 96
"""Bytes that kernels reserve for headers when they derive the payload of RoCE packets from the MTU."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers that do not show that a file is missing."""

_LINK_LAYERS: Final = {"InfiniBand": LinkLayer.INFINIBAND, "Ethernet": LinkLayer.ETHERNET}

_T = TypeVar("_T")


@frozen
class LinkRate:
    """
    Rate of a link.

    @ivar speed: name of the speed: C{"SDR"}, C{"EDR"}...; empty if the kernel does not report it.
    """

    bitsPerSecond: int = 0
    width: int = 0
    speed: str = ""

    @classmethod
    def fromString(cls, text: str) -> LinkRate:
        """Parse C{"100 Gb/sec (4X EDR)"}; missing parts are zero."""
        found = _RATE.match(text)
        if found is None:
            return cls()
        gigabits, width, speed = found.groups()
        return cls(round(float(gigabits) * 1e9), int(width or 0), speed or "")


@frozen
class EndPortAttributes:
    """
    The attributes of a port at one time, with the names of L{txrdma.iba.verbs.PortAttributes}.

    @ivar activeMTU: None on InfiniBand, where it is unknown without opening the device.
    @ivar gidTable: by index, without unused entries (GIDs of zeros) at the end.
    @ivar pkeys: by index, without unused entries (zero) at the end.
    """

    state: PortState
    physicalState: PhysicalState
    linkLayer: LinkLayer
    lid: LID
    lidMask: int
    smLID: LID
    smServiceLevel: int
    capabilities: int
    rate: LinkRate
    netdev: str
    mac: MACAddress | None
    activeMTU: MTU | None
    gidTable: tuple[GIDEntry, ...]
    pkeys: tuple[PKey, ...]


def contents(path: str) -> bytes:
    """Return an attribute, at most a page, without a file object: GID tables have a thousand of them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _PAGE)
    finally:
        os.close(descriptor)


class _Folder:
    """A folder of attributes, any of which may be missing, and which may disappear with its device."""

    name: str
    _kind: str

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._prefix = str(path)
        self._root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Folder) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def _read(self, name: str) -> str:
        """
        Return the content of a file, stripped; empty if it is missing.

        @raise DeviceUnavailable: the device or port has been removed, or nothing can be read at present.
        """
        try:
            return contents(f"{self._prefix}/{name}").decode("utf-8", "replace").strip("\0\n ")
        except OSError as error:
            self._missed(error)
            return ""

    def _missed(self, error: OSError) -> None:
        """Check that a file or folder that was not opened is missing, and that the device is not."""
        _checkMissing(error, f"the RDMA {self._kind} {self.name}")
        self._checkThere()

    def _checkThere(self) -> None:
        try:
            isThere = self._path.is_dir()
        except OSError as error:  # such as ENOMEM
            raise DeviceUnavailable(f"the RDMA {self._kind} {self.name}: {advised(error)}") from error
        if not isThere:
            raise DeviceUnavailable(f"the RDMA {self._kind} {self.name} no longer exists")

    def _parsed(self, name: str, parse: Callable[[str], _T], otherwise: _T) -> _T:
        try:
            return parse(self._read(name))
        except ValueError:
            return otherwise

    def _number(self, name: str) -> int:
        """Return a number that may be followed by its name: C{"4: ACTIVE"}, C{"0x1f"}."""
        return self._parsed(name, lambda text: int(text.partition(":")[0], 0), 0)

    def _names(self, name: str) -> list[str]:
        """Return the entries of a subfolder, in numeric order; none if it does not exist."""
        try:
            found = [entry.name for entry in (self._path / name).iterdir()]
        except OSError as error:
            self._missed(error)
            return []
        return sorted(found, key=naturalKey)

    def _counters(self, folder: str) -> dict[str, int]:
        """Return the numbers in a folder, without files such as C{"N/A (no PMA)"}."""
        texts = {name: self._read(f"{folder}/{name}") for name in self._names(folder)}
        return {name: int(text) for name, text in texts.items() if text.isdecimal()}


class RDMADevice(_Folder):
    """
    An RDMA device of this host.

    @ivar name: its name in the kernel: C{"mlx5_0"}.
    """

    _kind = "device"

    def __init__(self, name: str, root: Path = SYS) -> None:
        """@param root: path at which sysfs is mounted."""
        super().__init__(root / "class" / "infiniband" / name, root)
        self.name = name

    def __repr__(self) -> str:
        return f"RDMADevice({self.name!r})"

    @property
    def isPresent(self) -> bool:
        return self._path.is_dir()

    @property
    def identity(self) -> int:
        """A number that distinguishes the device from a later one with the same name."""
        try:
            return self._path.stat().st_ino
        except OSError:
            raise DeviceUnavailable(f"the RDMA device {self.name} no longer exists") from None

    @property
    def nodeType(self) -> NodeType:
        return _member(NodeType, self._number("node_type"), NodeType.UNKNOWN)

    @property
    def nodeGUID(self) -> GUID | None:
        return self._parsed("node_guid", GUID.fromString, None)

    @property
    def systemImageGUID(self) -> GUID | None:
        return self._parsed("sys_image_guid", GUID.fromString, None)

    @property
    def description(self) -> str:
        """The node description, as reported to other nodes of the subnet."""
        return self._read("node_desc")

    @property
    def firmware(self) -> str:
        return self._read("fw_ver")

    @property
    def hardwareType(self) -> str:
        """The driver's name of the device's type: C{"MT4119"}."""
        return self._read("hca_type")

    @property
    def hardwareVersion(self) -> int:
        return self._parsed("hw_rev", lambda text: int(text, 16), 0)

    @property
    def boardID(self) -> str:
        return self._read("board_id")

    @property
    def driver(self) -> str:
        """Name of the device's driver; empty for software devices, which have no hardware."""
        link = self._path / "device" / "driver"
        return link.resolve().name if link.exists() else ""

    @property
    def isIWARP(self) -> bool:
        """Whether the device uses iWARP, which has neither InfiniBand's addresses nor its packets."""
        return self.nodeType == NodeType.RNIC

    @property
    def parent(self) -> str:
        """The network interface on which a software device was created, if its driver reports it."""
        return self._read("parent")

    @property
    def verbsName(self) -> str:
        """Name of the character device for verbs, in C{/dev/infiniband}: C{"uverbs0"}."""
        return _characterDevice(self._root / "class" / "infiniband_verbs", "uverbs", self.name)

    @property
    def ports(self) -> list[EndPort]:
        return [EndPort(self, int(name)) for name in self._names("ports") if name.isdecimal()]

    def port(self, number: int) -> EndPort:
        """
        Return the port with this number.

        @raise DeviceUnavailable: the device has no such port.
        """
        ports = self.ports
        for port in ports:
            if port.number == number:
                return port
        known = ", ".join(str(port.number) for port in ports) or "none"
        raise DeviceUnavailable(f"{self.name} has no port {number}; its ports: {known}")

    def counters(self) -> dict[str, int]:
        """The driver's counters of the whole device."""
        return self._counters("hw_counters")


class EndPort(_Folder):
    """
    A port of an RDMA device.

    @ivar name: its device's name and its number: C{"mlx5_0/1"}.
    """

    _kind = "port"

    def __init__(self, device: RDMADevice, number: int) -> None:
        super().__init__(device._path / "ports" / str(number), device._root)
        self.device = device
        self.number = number
        self.name = f"{device.name}/{number}"

    def __repr__(self) -> str:
        return f"<EndPort {self.name}>"

    @property
    def state(self) -> PortState:
        return _member(PortState, self._number("state"), PortState.NOP)

    @property
    def physicalState(self) -> PhysicalState:
        return _member(PhysicalState, self._number("phys_state"), PhysicalState.NOP)

    @property
    def linkLayer(self) -> LinkLayer:
        return _LINK_LAYERS.get(self._read("link_layer"), LinkLayer.UNSPECIFIED)

    @property
    def lid(self) -> LID:
        return LID(self._number("lid"))

    @property
    def lidMask(self) -> int:
        """Number of low bits of the LID that senders may choose (LMC)."""
        return self._number("lid_mask_count")

    @property
    def smLID(self) -> LID:
        return LID(self._number("sm_lid"))

    @property
    def smServiceLevel(self) -> int:
        return self._number("sm_sl")

    @property
    def capabilities(self) -> int:
        """The bits of PortInfo's CapabilityMask (IBA 14.2.5.6)."""
        return self._number("cap_mask")

    @property
    def rate(self) -> LinkRate:
        return LinkRate.fromString(self._read("rate"))

    @property
    def guid(self) -> GUID | None:
        """The GUID of the port: the lower half of its first GID (IBA 4.1.1)."""
        first = next(self._gids(), _NO_GID)
        return first.guid if first != _NO_GID else None

    def gids(self) -> list[GID]:
        """The GID table; its indices are those of C{sgidIndex}."""
        return [entry.gid for entry in self.gidTable()]

    def gidTable(self) -> list[GIDEntry]:
        """The GID table, with the type and the network interface of each GID."""
        linkLayer = self.linkLayer
        table = [
            _NO_ENTRY
            if gid == _NO_GID
            else GIDEntry(gid, self._gidType(index, linkLayer), self._read(f"gid_attrs/ndevs/{index}"))
            for index, gid in enumerate(self._gids())
        ]
        while table and table[-1] == _NO_ENTRY:
            table.pop()
        return table

    def pkeys(self) -> list[PKey]:
        """The P_Key table; its indices are those of C{pkeyIndex}."""
        table = [PKey(self._number(f"pkeys/{index}")) for index in range(self.pkeyTableLength)]
        while table and table[-1] == 0:
            table.pop()
        return table

    @property
    def gidTableLength(self) -> int:
        """Number of entries of the GID table."""
        return len(self._names("gids"))

    @property
    def pkeyTableLength(self) -> int:
        """Number of entries of the P_Key table."""
        return len(self._names("pkeys"))

    @property
    def netdev(self) -> str:
        """The network interface of the port; empty if there is none, or if it is unknown."""
        return self._netdev(self.gidTable())

    @property
    def mac(self) -> MACAddress | None:
        """The Ethernet address of L{netdev}."""
        return self._mac(self.netdev)

    @property
    def activeMTU(self) -> MTU | None:
        """The active MTU; None on InfiniBand, where sysfs does not report it."""
        return self._activeMTU(self.linkLayer, self.netdev)

    @property
    def madName(self) -> str:
        """Name of the character device for management datagrams, in C{/dev/infiniband}: C{"umad0"}."""
        return _characterDevice(
            self._root / "class" / "infiniband_mad", "umad", self.device.name, self.number
        )

    @property
    def smName(self) -> str:
        """Name of the device that, while open, announces an SM at the port: C{"issm0"}."""
        return _characterDevice(
            self._root / "class" / "infiniband_mad", "issm", self.device.name, self.number
        )

    def counters(self) -> dict[str, int]:
        """The counters of the specification (IBA 16.1), by the kernel's names for them."""
        return self._counters("counters")

    def hardwareCounters(self) -> dict[str, int]:
        """Driver-specific counters of the port."""
        return self._counters("hw_counters")

    def attributes(self) -> EndPortAttributes:
        """
        Return all attributes with their current values.

        @raise DeviceUnavailable: the port has been removed.
        """
        self._checkThere()
        linkLayer, table = self.linkLayer, self.gidTable()
        netdev = self._netdev(table)
        return EndPortAttributes(
            state=self.state,
            physicalState=self.physicalState,
            linkLayer=linkLayer,
            lid=self.lid,
            lidMask=self.lidMask,
            smLID=self.smLID,
            smServiceLevel=self.smServiceLevel,
            capabilities=self.capabilities,
            rate=self.rate,
            netdev=netdev,
            mac=self._mac(netdev),
            activeMTU=self._activeMTU(linkLayer, netdev),
            gidTable=tuple(table),
            pkeys=tuple(self.pkeys()),
        )

    def _gids(self) -> Iterator[GID]:
        """Return the whole GID table, including unused entries."""
        for index in range(self.gidTableLength):
            text = self._read(f"gids/{index}")
            yield _NO_GID if text == _NO_GID_TEXT else _gid(text)

    def _gidType(self, index: int, linkLayer: LinkLayer) -> GIDType:
        if self._read(f"gid_attrs/types/{index}") == GIDType.ROCE_V2.value:
            return GIDType.ROCE_V2
        # The kernel has one word for the other two.
        return GIDType.ROCE_V1 if linkLayer == LinkLayer.ETHERNET else GIDType.INFINIBAND

    def _netdev(self, table: list[GIDEntry]) -> str:
        named = next((entry.netdev for entry in table if entry.netdev), "")
        return named or self.device.parent or self._netdevOfHardware()

    def _netdevOfHardware(self) -> str:
        """Return an interface of the same hardware with this port number."""
        folder = self.device._path / "device" / "net"
        for name in _namesIn(folder):
            # Drivers number ports here or there, from 0.
            numbers = [_numberIn(folder / name / attribute) for attribute in ("dev_id", "dev_port")]
            if max(numbers) == self.number - 1:
                return name
        return ""

    def _mac(self, netdev: str) -> MACAddress | None:
        if not netdev:
            return None
        try:
            return MACAddress.fromString(self._textOfNetdev(netdev, "address"))
        except ValueError:
            return None

    def _activeMTU(self, linkLayer: LinkLayer, netdev: str) -> MTU | None:
        if linkLayer != LinkLayer.ETHERNET or not netdev:
            return None
        try:
            return MTU.fitting(int(self._textOfNetdev(netdev, "mtu")) - _ROCE_OVERHEAD)
        except ValueError:
            return None

    def _textOfNetdev(self, netdev: str, attribute: str) -> str:
        return _textIn(self._root / "class" / "net" / netdev / attribute)


def devices(root: str | Path = SYS) -> list[RDMADevice]:
    """
    Return the RDMA devices of this host; none if the kernel does not support RDMA.

    @param root: path at which sysfs is mounted.
    @raise DeviceUnavailable: they cannot be listed at present.
    """
    return [RDMADevice(name, Path(root)) for name in _namesIn(Path(root) / "class" / "infiniband")]


def _checkMissing(error: OSError, what: str) -> None:
    """Raise L{DeviceUnavailable} if an error does not show that a file is missing."""
    if error.errno in _EXHAUSTED:
        raise DeviceUnavailable(f"{what}: {advised(error)}") from error


def _namesIn(folder: Path) -> list[str]:
    """Return the entries of a folder, in numeric order; none if it is missing."""
    try:
        return sorted((entry.name for entry in folder.iterdir()), key=naturalKey)
    except OSError as error:
        _checkMissing(error, str(folder))
        return []


def _textIn(path: Path) -> str:
    """Return the content of a file, stripped; empty if it is missing."""
    try:
        return path.read_text().strip()
    except OSError as error:
        _checkMissing(error, str(path))
        return ""


def _member(kind: Callable[[int], _T], number: int, otherwise: _T) -> _T:
    try:
        return kind(number)
    except ValueError:
        return otherwise


def _gid(text: str) -> GID:
    try:
        return GID.fromString(text)
    except ValueError:
        return _NO_GID


def _numberIn(path: Path) -> int:
    try:
        return int(_textIn(path), 0)
    except ValueError:
        return 0


def _characterDevice(folder: Path, prefix: str, device: str, port: int | None = None) -> str:
    """Return the name of the class's device that belongs to an RDMA device, and to a port of it."""
    for name in _namesIn(folder):
        if not name.startswith(prefix) or _textIn(folder / name / "ibdev") != device:
            continue
        if port is None or _numberIn(folder / name / "port") == port:
            return name
    return ""
