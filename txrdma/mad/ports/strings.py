"""
Strings of management ports (C{ibsim...}, C{umad...}, C{vmad...}), parsed and made into ports.

Twisted loads this module whenever it looks for port plugins, so it imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from zope.interface import implementer

from twisted.plugin import getPlugins, IPlugin

from txrdma.interfaces import IMADPort, IMADPortStringParser, IVerbsDeviceStringParser


@implementer(IPlugin, IMADPortStringParser)
class IbsimPortStringParser:
    """
    C{ibsim} or C{ibsim:NODE}; keys are C{socket} and C{sm}.

    C{NODE} is a node of the net file, by its identifier or description; without it that is SIM_HOST of the
    environment, or the first one. C{socket} is the name of ibsim's sockets; without it that is
    IBSIM_SOCKNAME, or C{sim}. C{sm=yes} receives datagrams for the subnet manager.
    """

    prefix = "ibsim"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        from txrdma.mad.ports.ibsim import IbsimPort

        node, socket, sm = _understood(*args, **kwargs)
        return IbsimPort(reactor, socket, node, sm)

    def available(self) -> Sequence[str]:
        """A running ibsim, by the name of its sockets in the environment."""
        name = os.environ.get("IBSIM_SOCKNAME", "sim")
        try:
            with open("/proc/net/unix", encoding="ascii", errors="replace") as sockets:
                return ["ibsim"] if any(f"@{name}:ctl" in line for line in sockets) else []
        except OSError:
            return []


def _understood(*args: str, **kwargs: str) -> tuple[str, str, bool]:
    """
    Node, name of the sockets, and whether to be the subnet manager.

    @raise ValueError: the string is invalid.
    """
    values = dict(zip(("node", "socket", "sm"), args, strict=False))
    for key, value in kwargs.items():
        if key not in ("node", "socket", "sm") or key in values:
            raise ValueError(f"ibsim: {key}={value} has no meaning here; keys are node, socket and sm")
        values[key] = value
    if len(args) > 3:
        raise ValueError(f"ibsim: {args[3]!r} is one argument too many")
    if values.get("sm", "no") not in ("yes", "no"):
        raise ValueError(f"ibsim: sm is yes or no, not {values['sm']!r}")
    return values.get("node", ""), values.get("socket", ""), values.get("sm", "no") == "yes"


@implementer(IPlugin, IMADPortStringParser)
class UmadPortStringParser:
    """
    Parser of C{umad:PORT}; the key is C{rmpp}.

    C{PORT} is as L{txrdma.ports.getEndPort} has it, such as C{mlx5_0/1}; without it, the first port that is
    active. C{rmpp=own} has us segment and reassemble RMPP transfers instead of the kernel.
    """

    prefix = "umad"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        from txrdma.mad.ports.umad import UmadPort
        from txrdma.ports import getEndPort

        for key, value in kwargs.items():
            if key not in ("port", "rmpp") or (key == "port" and args):
                raise ValueError(f"umad: {key}={value} has no meaning here; keys are port and rmpp")
        # A colon in a GID or a GUID needs no backslash here: there is nothing else that it could part.
        spelling = ":".join(args) or kwargs.get("port", "")
        rmpp = kwargs.get("rmpp", "kernel")
        if rmpp not in ("kernel", "own"):
            raise ValueError(f"umad: rmpp is kernel or own, not {rmpp!r}")
        return UmadPort(reactor, getEndPort(spelling), rmpp == "kernel")

    def available(self) -> Sequence[str]:
        """Names of ports whose device files can be opened, those of InfiniBand first."""
        from txrdma.iba.verbs import LinkLayer
        from txrdma.ports import devices

        ports = [
            port
            for device in devices()
            for port in device.ports
            if port.madName and os.access(f"/dev/infiniband/{port.madName}", os.R_OK | os.W_OK)
        ]
        ports.sort(key=lambda port: port.linkLayer is not LinkLayer.INFINIBAND)
        return [f"umad:{port.name}" for port in ports]


@implementer(IPlugin, IMADPortStringParser)
class VerbsPortStringParser:
    """
    C{vmad:DEVICE}, where C{DEVICE} is a whole device string, such as C{soft:192.0.2.1} or C{pyverbs:mlx5_0}.

    A port without datagrams of subnet management. Keys of ours are C{endport}, the number of the device's
    port, and C{qpn=1}: queue pair 1 of a software device, the default destination of peers.
    """

    prefix = "vmad"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        from txrdma.mad.ports.verbsport import VerbsPort

        number = kwargs.pop("endport", "1")
        if not number.isdecimal():
            raise ValueError(f"vmad: endport is a number, not {number!r}")
        qpn = kwargs.pop("qpn", "")
        if qpn not in ("", "1"):
            raise ValueError(f"vmad: of queue pairs only qpn=1 can be asked for, not {qpn!r}")
        if not args:
            raise ValueError("vmad: needs a device: vmad:soft or vmad:pyverbs:NAME")
        for parser in getPlugins(IVerbsDeviceStringParser):
            if parser.prefix == args[0]:
                device = parser.parseDevice(reactor, *args[1:], **kwargs)
                return VerbsPort(reactor, device, int(number), isGSI=qpn == "1")
        raise ValueError(f"vmad: there is no kind of device {args[0]!r}")

    def available(self) -> Sequence[str]:
        """Names of ports at every device that can be opened."""
        parsers = list(getPlugins(IVerbsDeviceStringParser))
        return [f"vmad:{name}" for parser in parsers for name in parser.available()]
