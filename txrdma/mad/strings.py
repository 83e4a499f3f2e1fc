"""
The strings of management ports C{ibsim...}: what stands in them, made into ports.

Twisted loads this module whenever it looks for port plugins, so it imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from zope.interface import implementer

from twisted.plugin import IPlugin

from txrdma.interfaces import IMADPort, IMADPortStringParser


@implementer(IPlugin, IMADPortStringParser)
class IbsimPortStringParser:
    """
    C{ibsim} or C{ibsim:NODE}; keys are C{socket} and C{sm}.

    C{NODE} is a node of the net file, by its identifier or description; without it that is SIM_HOST of the
    environment, or the first one. C{socket} is the name of ibsim's sockets; without it that is
    IBSIM_SOCKNAME, or C{sim}. C{sm=yes} brings what is for the subnet's manager.
    """

    prefix = "ibsim"

    def parsePort(self, reactor: Any, *args: str, **kwargs: str) -> IMADPort:
        """Open it."""
        from txrdma.mad.ibsim import IbsimPort

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
    Node, name of the sockets, and whether to be the manager.

    @raise ValueError: the string says something that has no meaning.
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
