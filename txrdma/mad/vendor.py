"""
Vendor classes: ping and system statistics of the OpenFabrics Alliance, which hosts answer, and revisions of
Mellanox switches.

Follows infiniband-diags: C{ibping} is class 0x32 of the OUI 00:14:05, C{ibsysstat} class 0x33. Their contents
are text that ends with a zero. C{vendstat} is class 0x0A.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

from zope.interface import implementer

from txrdma.interfaces import IMADHandler
from txrdma.kit.wire import bits, data, wire
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts.attributes import Attribute, attribute, key, ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest, MADStatus
from txrdma.mad.layouts.values import text
from txrdma.mad.server import MADServer

OPENIB_OUI: Final = 0x001405

_LENGTH: Final = 216


@wire(_LENGTH)
class VendorText(Attribute):
    """Text in a vendor's attribute."""

    content: bytes = data(_LENGTH, shown=text)

    @property
    def text(self) -> str:
        """Text up to the first zero; bytes that are not UTF-8 are replaced."""
        return self.content.partition(b"\0")[0].decode("utf-8", "replace")


def filled(text: str) -> bytes:
    """
    Return this text as bytes of such an attribute: truncated to its length, with a zero at the end.

    @param text: bytes that are not UTF-8 are surrogates, as in names of hosts and files.
    """
    return text.encode("utf-8", "surrogateescape")[: _LENGTH - 1].ljust(_LENGTH, b"\0")


@attribute(0x0000, "VendGet", vendorClass=ManagementClass.VENDOR_OPENIB_PING, oui=OPENIB_OUI, size=_LENGTH)
class OpenIBPing(VendorText):
    """Ping of a host, answered with its name (C{ibping})."""


@attribute(0x0010, "VendGet", vendorClass=ManagementClass.VENDOR_OPENIB_SYSSTAT, oui=OPENIB_OUI, size=_LENGTH)
class OpenIBSystemPing(VendorText):
    """Ping of a host in the class of system statistics (C{ibsysstat})."""


@attribute(0x0011, "VendGet", vendorClass=ManagementClass.VENDOR_OPENIB_SYSSTAT, oui=OPENIB_OUI, size=_LENGTH)
class OpenIBHostInfo(VendorText):
    """Name of a host (C{ibsysstat})."""


@attribute(0x0012, "VendGet", vendorClass=ManagementClass.VENDOR_OPENIB_SYSSTAT, oui=OPENIB_OUI, size=_LENGTH)
class OpenIBCPUInfo(VendorText):
    """Processors of a host, a line each (C{ibsysstat})."""


@wire(76)
class _MlxRevisions(Attribute):
    """The beginning of both forms of a Mellanox device's revisions."""

    reserved: int = bits(64)
    hwRevision: int = key(16)
    deviceID: int = key(16)
    reserved2: bytes = data(24)
    uptime: int = bits(32)
    reserved3: int = bits(8)
    fwMajor: int = bits(8)
    fwMinor: int = bits(8)
    fwSubMinor: int = bits(8)
    fwBuildID: int = key(32)
    fwMonth: int = key(8)
    fwDay: int = key(8)
    fwYear: int = key(16)
    reserved4: int = bits(16)
    fwHour: int = key(16)
    fwPSID: bytes = data(16, shown=text)
    fwINIFileVersion: int = key(32)


@attribute(0x0017, "VendGet", vendorClass=ManagementClass.VENDOR_0A, size=108)
class MlxGeneralInfo(_MlxRevisions):
    """
    The revisions of a Mellanox switch (InfiniScale III).

    @ivar fwPSID: board and configuration that the firmware is for.
    @ivar fwMonth: month of the firmware's build, encoded as C{fwDay}, C{fwYear} and C{fwHour} are: as
        hexadecimal digits.
    """

    reserved5: int = bits(8)
    swMajor: int = bits(8)
    swMinor: int = bits(8)
    swSubMinor: int = bits(8)
    reserved6: bytes = data(28)


@attribute(0x0017, "VendGet", vendorClass=ManagementClass.VENDOR_0A, size=140)
class MlxGeneralInfoExtended(_MlxRevisions):
    """
    The revisions of a Mellanox or NVIDIA device (InfiniScale IV and later, ConnectX), with 32 bits for each
    part of the firmware's version.

    This is the same attribute ID as L{MlxGeneralInfo}; C{deviceID} shows which of the two an answer is. Pass
    the class to decode.

    @ivar uptime: time since the start of the firmware, in seconds.
    @ivar capabilityMask: optional attributes of this class that the device has.
    """

    extMajor: int = bits(32)
    extMinor: int = bits(32)
    extSubMinor: int = bits(32)
    reserved5: bytes = data(16)
    reserved6: int = bits(8)
    swMajor: int = bits(8)
    swMinor: int = bits(8)
    swSubMinor: int = bits(8)
    reserved7: bytes = data(28)
    capabilityMask: int = key(32)


def hostName() -> str:
    """Host name from the kernel: a DNS query would block the reactor for each request."""
    return socket.gethostname()


def processors(path: str = "/proc/cpuinfo") -> str:
    """Processors of this host, a line each, as C{ibsysstat} lists them."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = list(_processors(file.read()))
    except OSError:
        lines = []
    return "".join(lines) or f"{os.cpu_count() or 1} processors\n"


def _processors(listing: str) -> Iterator[str]:
    for number, part in enumerate(part for part in listing.split("\n\n") if part.strip()):
        values = dict(line.split(":", 1) for line in part.splitlines() if ":" in line)
        known = {key.strip(): value.strip() for key, value in values.items()}
        if "model name" in known or "cpu MHz" in known:
            model, mhz = known.get("model name", "unknown"), known.get("cpu MHz", "unknown")
            yield f"cpu {number}: model {model} MHZ {mhz}\n"


@implementer(IMADHandler)
class TextHandler:
    """
    Handler that answers with text.

    @ivar answered: number of requests answered.
    """

    def __init__(self, texts: dict[type[VendorText], Callable[[], str]]) -> None:
        """@param texts: functions that return the text of each attribute."""
        self._texts = texts
        self.answered = 0

    def handle(self, request: MADRequest) -> object:
        kind = type(request.payload)
        getText = self._texts.get(kind)  # type: ignore[arg-type]  # others are simply not in it
        if getText is None:
            raise MADRefusal(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        self.answered += 1
        return kind(content=filled(getText()))  # type: ignore[call-arg, misc]  # all of these have it


def servePing(server: MADServer, name: str = "") -> tuple[TextHandler, Callable[[], None]]:
    """
    Answer C{ibping} and C{txrdma ping}.

    @return: the handler, and a function that ends it.
    @raise txrdma.error.ResourceExhausted: another program on this host does already.
    """
    handler = TextHandler({OpenIBPing: lambda: name or hostName()})
    return handler, _served(server, handler, ManagementClass.VENDOR_OPENIB_PING)


def serveSysstat(server: MADServer, name: str = "") -> tuple[TextHandler, Callable[[], None]]:
    """
    Answer C{ibsysstat} and C{txrdma sysstat}.

    @return: the handler, and a function that ends it.
    @raise txrdma.error.ResourceExhausted: another program on this host does already.
    """
    handler = TextHandler(
        {OpenIBSystemPing: lambda: "", OpenIBHostInfo: lambda: name or hostName(), OpenIBCPUInfo: processors}
    )
    return handler, _served(server, handler, ManagementClass.VENDOR_OPENIB_SYSSTAT)


def _served(server: MADServer, handler: TextHandler, managementClass: ManagementClass) -> Callable[[], None]:
    return server.handle(managementClass, handler, (Method.GET,), OPENIB_OUI)
