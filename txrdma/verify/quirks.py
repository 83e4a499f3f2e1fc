"""Known behaviour of devices and hosts that explains failures of a verification."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from txrdma.kit.values import frozen
from txrdma.verify.checks import Check


@frozen
class Known:
    """
    A known symptom, and its explanation. Empty fields match everything.

    @ivar driver: name of the kernel's driver, as a file name pattern.
    @ivar nodeType: name of a L{txrdma.iba.verbs.NodeType}, such as C{RNIC}.
    @ivar vendor: vendor ID; C{part}: part ID; 0 matches every one.
    @ivar firmware: regular expression for the beginning of the firmware's version.
    @ivar check: path of the check, as a file name pattern.
    @ivar symptom: regular expression that is found in the text or the detail of the failure.
    """

    explanation: str
    driver: str = "*"
    nodeType: str = ""
    vendor: int = 0
    part: int = 0
    firmware: str = ""
    check: str = "*"
    symptom: str = ""

    def matches(self, check: Check, facts: Mapping[str, Any]) -> bool:
        """Return whether this explains a failed check on a device with these facts."""
        return (
            fnmatchcase(str(facts.get("driver", "")), self.driver)
            and self.nodeType in ("", facts.get("nodeType"))
            and self.vendor in (0, int(str(facts.get("vendor", "0")), 16))
            and self.part in (0, facts.get("part"))
            and re.match(self.firmware, str(facts.get("firmware", ""))) is not None
            and fnmatchcase(check.path, self.check)
            and re.search(self.symptom, f"{check.text}\n{check.detail}") is not None
        )


KNOWN: Final = (
    Known(
        "The limit of pinned memory is reached: raise ulimit -l, see txrdma doctor.",
        symptom=r"Cannot allocate memory|Errno: 12\b",
    ),
    Known(
        "The limit of descriptors is reached: raise ulimit -n, see txrdma doctor.",
        symptom=r"Too many open files",
    ),
    Known(
        "Conversations write logs to a temporary folder: set TMPDIR to one in which this user may write.",
        symptom=r"No usable temporary directory",
    ),
    Known(
        "A device file must not be opened by this user: see txrdma doctor.",
        symptom=r"Permission denied|Operation not permitted",
    ),
    Known(
        "Linux found no neighbour for the peer's IP address. Between two ports of one host, set the sysctls "
        "net.ipv4.conf.*.arp_ignore=1, accept_local=1 and rp_filter=2, or use a network namespace for each.",
        symptom=r"No route to host|Connection timed out|Network is unreachable",
        check="verbs/*",
    ),
    Known(
        "EFA has neither reliable connections nor RDMA CM; txrdma does not support its own transport (SRD).",
        driver="efa",
    ),
    Known("iWARP has neither datagrams nor queue pair 1.", nodeType="RNIC", check="btl/*"),
    Known("iWARP has neither datagrams nor queue pair 1.", nodeType="RNIC", check="mad/*"),
    Known(
        "rdma: needs an address of the port, and the module rdma_ucm or queue pair 1: see txrdma doctor.",
        check="*rdma*",
        symptom=r"rdma_cm|queue pair 1 of port",
    ),
    Known(
        "The device is busy or slow: repeat the run while nothing else uses the host.",
        symptom=r"does not hold after|it does not happen|TimeoutError|out of time|had not ended after",
    ),
)
"""What is known, the most specific first of those that may match one failure."""


def explanationOf(check: Check, devices: Iterable[Mapping[str, Any]]) -> str:
    """Return the explanation of a failure on one of the devices, by their facts; empty if it is unknown."""
    devices = list(devices)
    for known in KNOWN:
        if any(known.matches(check, facts) for facts in devices):
            return known.explanation
    return ""
