"""
Strings of management ports (C{ibsim...}, C{umad...}, C{vmad...}), and parsers that open them.

Twisted loads this module whenever it looks for port plugins, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from zope.interface import implementer

from twisted.plugin import getPlugins, IPlugin

from txrdma.interfaces import IMADPort, IMADPortStringParser, IVerbsDeviceStringParser
from txrdma.kit.strings import Arguments


@implementer(IPlugin, IMADPortStringParser)
class IbsimPortStringParser:
    """
    C{ibsim} or C{ibsim:NODE}; keys are C{socket}, C{sm} and C{user}.

    C{NODE} is a node of the net file, by its identifier or description; the default is SIM_HOST of the
    environment, or the first one. C{socket} is the name of ibsim's sockets; the default is IBSIM_SOCKNAME, or
    C{sim}. C{sm=yes} receives datagrams for the subnet manager. C{user=same} refuses an ibsim that runs
    neither as the user of this process nor as root.
    """

    prefix = "ibsim"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        from txrdma.mad.ports.ibsim import IbsimPort

        arguments = Arguments("ibsim", ("node", "socket", "sm", "user"), args, kwargs)
        node, socket = arguments.take("node"), arguments.take("socket")
        sm = arguments.isYes("sm", False)
        isOfAnyUser = arguments.choice("user", "any", "same") == "any"
        arguments.end()
        return IbsimPort(reactor, socket, node, sm, isOfAnyUser)

    def available(self) -> Sequence[str]:
        """A running ibsim of this user or root, by the name of its sockets in the environment."""
        name = os.environ.get("IBSIM_SOCKNAME", "sim")
        try:
            with open("/proc/net/unix", encoding="ascii", errors="replace") as sockets:
                return ["ibsim:user=same"] if any(f"@{name}:ctl" in line for line in sockets) else []
        except OSError:
            return []


@implementer(IPlugin, IMADPortStringParser)
class UmadPortStringParser:
    """
    Parser of C{umad:PORT}; the key is C{rmpp}.

    C{PORT} is a name for L{txrdma.ports.getEndPort}, such as C{mlx5_0/1}; the default is the first active
    port. With C{rmpp=own}, txrdma segments and reassembles RMPP transfers instead of the kernel.
    """

    prefix = "umad"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        from txrdma.mad.ports.umad import UmadPort
        from txrdma.ports import getEndPort

        # A colon in a GID or a GUID needs no backslash here: there is nothing else that it could part.
        arguments = Arguments("umad", ("port",), (":".join(args),) if args else (), kwargs)
        spelling, rmpp = arguments.take("port"), arguments.choice("rmpp", "kernel", "own")
        arguments.end()
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

    A port without datagrams of subnet management. Further keys are C{endport}, the number of the device's
    port, and C{qpn=1}: queue pair 1 of a software device, the default destination of peers.
    """

    prefix = "vmad"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        from txrdma.mad.ports.verbsport import VerbsPort

        arguments = Arguments("vmad", (), (), kwargs)
        number = arguments.number("endport", 1, 1, 255)
        isGSI = arguments.choice("qpn", "", "1") == "1"
        if not args:
            raise ValueError("vmad: needs a device: vmad:soft or vmad:pyverbs:NAME")
        for parser in getPlugins(IVerbsDeviceStringParser):
            if parser.prefix == args[0]:
                device = parser.parseDevice(reactor, *args[1:], **arguments.left)
                return VerbsPort(reactor, device, number, isGSI=isGSI)
        raise ValueError(f"vmad: there is no kind of device {args[0]!r}")

    def available(self) -> Sequence[str]:
        """Names of ports at every device that can be opened."""
        parsers = list(getPlugins(IVerbsDeviceStringParser))
        return [f"vmad:{name}" for parser in parsers for name in parser.available()]
