"""
The tool that assembles the BPF program of SMC's TCP option, and detection of that option in SYNs.
"""

from __future__ import annotations

import runpy
import socket
from typing import Any

from txrdma.commands.dissect.tcp import OPTION, optionsOf, segmentIn
from txrdma.error import WireError
from txrdma.smc.signalling.option.carrier import takeSYN
from txrdma.test.support import CHECKOUT

TOOL = CHECKOUT / "tools" / "smcoption.py"
NO_TOOL = None if TOOL.exists() else "needs the tools of a checkout"


def tool() -> dict[str, Any]:
    """Run the tool's module, and return its names."""
    return runpy.run_path(str(TOOL))


def hasOption(packet: bytes) -> bool:
    """Return whether an IP packet is a TCP segment with SMC's option; False if it is malformed."""
    try:
        return OPTION in optionsOf(segmentIn(packet))
    except WireError:
        return False


def sawOption(accepted: socket.socket) -> bool:
    """Return whether the saved SYN of a connection had SMC's option. The kernel returns it once."""
    return hasOption(takeSYN(accepted))
