"""Severity of each kind of finding, and advice on its repair."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Severity(IntEnum):
    """Severity of a finding: how soon it needs attention."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Advice:
    """
    Advice on a kind of finding.

    @ivar text: a sentence that says what to do.
    """

    severity: Severity
    text: str


_INFO, _WARNING, _CRITICAL = Severity

_CABLE: Final = "Reseat the cable, then exchange it, then the port of either end."

# fmt: off
ADVICE: Final[dict[str, Advice]] = {
    # links
    "state": Advice(_WARNING, "See that a subnet manager runs, and that it can reach both ends of the link."),
    "width": Advice(_WARNING, f"A lane has failed, or the cable has fewer of them. {_CABLE}"),
    "speed": Advice(_WARNING, f"See that the cable is made for the speed of both ends. {_CABLE}"),
    "mtu": Advice(_WARNING, "Have the subnet manager set up the link again: take the link down and up."),
    "no-link": Advice(_CRITICAL, "Connect the cable of this host, or choose the port that has one."),
    "flapping": Advice(_CRITICAL, f"The link goes down again and again. {_CABLE}"),
    "link-gone": Advice(_WARNING, "See that both ends have power, and that the cable is in its place."),
    "node-gone": Advice(_WARNING, "See that the node has power and a link; if it was removed, wait."),
    # counters
    "errors": Advice(_WARNING, "Clear the counters, and see which of them grow: txrdma errors --clear."),
    "symbol-errors": Advice(_WARNING, f"The signal is bad. {_CABLE}"),
    "symbol-ber": Advice(_WARNING, f"The link has more bit errors than it may have. {_CABLE}"),
    "link-recoveries": Advice(_WARNING, f"The link had to be trained again while it was up. {_CABLE}"),
    "receive-errors": Advice(_WARNING, f"Damaged packets are received. {_CABLE}"),
    "remote-errors": Advice(_INFO,
        "Packets were damaged on an earlier link: find the port with symbol errors."),
    "counter-full": Advice(_INFO,
        "Clear it, since further errors are not counted: the text has the command."),
    "slow-receiver": Advice(_WARNING,
        "See why this host takes packets slowly: its load, its PCIe link, its memory, pause frames."),
    "congestion": Advice(_WARNING,
        "See why the switch has no buffers for this port: routes, failed links, its firmware."),
    "link-full": Advice(_INFO,
        "More is sent to this place than fits: spread jobs and storage, or balance the routes."),
    "discards": Advice(_WARNING, "Packets wait too long: find a slow receiver beyond this port."),
    "constraint-errors": Advice(_WARNING, "See that both ends of the traffic are in the same partition."),
    "integrity-errors": Advice(_WARNING, f"The link fails more often than it allows. {_CABLE}"),
    "overruns": Advice(_WARNING, "The peer sends more than it may: update the firmware of both ends."),
    "fec-uncorrectable": Advice(_WARNING,
        f"The signal is worse than error correction can mend, so that packets are lost. {_CABLE}"),
    "vl15-dropped": Advice(_INFO, "Too many management datagrams: slow down their sender."),
    "counters-silent": Advice(_WARNING, "See that the node is alive, and that its SL and VL 0 lead to it."),
    "node-silent": Advice(_WARNING, "The link is up and the node does not answer: see whether it hangs."),
    # identifiers
    "no-lid": Advice(_WARNING, "See that the subnet manager reaches this port, and read its log."),
    "bad-lid": Advice(_CRITICAL, "Restart the subnet manager with new LIDs (OpenSM: reassign_lids)."),
    "duplicate-lid": Advice(_CRITICAL, "See that one subnet manager alone is in charge, and restart it."),
    "duplicate-guid": Advice(_CRITICAL,
        "Give one of the two devices its own GUID again, by its firmware tool."),
    "no-guid": Advice(_CRITICAL, "Give the device its GUID again, by its firmware tool."),
    "duplicate-name": Advice(_INFO, "Give the hosts different names, or set their node descriptions."),
    "two-names": Advice(_INFO, "See why parts of one machine have names of two: rename one of them."),
    # cables
    "cable-wrong": Advice(_WARNING, "Move the cable to the port of the topology, or correct the topology."),
    "cable-missing": Advice(_WARNING, "Connect the cable that the topology has, or remove it there."),
    "cable-extra": Advice(_INFO, "Enter the cable into the topology, or remove it."),
    "module-hot": Advice(_WARNING, "See that fans run and that air reaches the module; then exchange it."),
    "receive-power": Advice(_WARNING,
        "Clean the connectors of the fibre at both ends, then exchange it, then the module that sends."),
    "cable-changed": Advice(_INFO, "None is needed if the cable was exchanged on purpose."),
    "node-missing": Advice(_WARNING, "See that the node has power and links, or correct the topology."),
    # tables
    "pkeys": Advice(_WARNING, "Have the subnet manager set up partitions again: see its partitions file."),
    "vls": Advice(_WARNING, "Have the subnet manager set up the link again: take the link down and up."),
    "sl-to-vl": Advice(_INFO, "See the subnet manager's settings of QoS: they are for all ports."),
    "credit-loop": Advice(_WARNING, "Choose a routing without loops for this topology (ftree, updn, lash)."),
    "unreachable-lid": Advice(_CRITICAL, "Make the subnet manager recompute the routes, and read its log."),
    "unbalanced": Advice(_INFO,
        "Make the subnet manager recompute the routes at a convenient time (OpenSM: kill -HUP)."),
    "adaptive-unknown": Advice(_INFO,
        "Packets may take other ports than the forwarding tables say: loops are possible, and not found."),
    "firmware": Advice(_INFO, "Bring the firmware to that of the others of its kind."),
    # subnet managers
    "no-sm": Advice(_CRITICAL, "Start a subnet manager, or see why the one there is does not answer."),
    "several-sms": Advice(_CRITICAL, "Find the link that divides the fabric, or stop one subnet manager."),
    "other-sm": Advice(_WARNING, "Decide which subnet manager to use, and stop the other."),
    "sm-silent": Advice(_WARNING, "See that the subnet manager's host is alive, and read its log."),
    "sm-still": Advice(_WARNING, "See whether the subnet manager hangs, and read its log."),
    "sm-changed": Advice(_INFO,
        "Find out why the previous subnet manager has ended, unless it was stopped on purpose."),
    # sweeps
    "unreachable": Advice(_WARNING, "See whether the node behind this port hangs, or is losing datagrams."),
    "refused": Advice(_INFO, "See whether the node's M_Key is known here, and whether its firmware is old."),
    "unprocessed": Advice(_WARNING,
        "This is a defect of txrdma: report it, with the traceback in the log and a snapshot of the fabric."),
    "contradiction": Advice(_INFO,
        "Sweep again: the fabric changed during the sweep, or a node sends wrong data."),
    "incomplete": Advice(_INFO, "Sweep again: a part of the fabric was not seen."),
    "left-out": Advice(_CRITICAL,
        "See what answers behind the port that is named: it may invent nodes. If the fabric is as large as "
        "that, raise poll.nodes or poll.hops (--nodes, --hops)."),
    "interrupted": Advice(_INFO, "Sweep again: the sweep did not finish."),
    "port-lost": Advice(_CRITICAL, "The monitor's own port is gone: see the device and its driver."),
    "clock-ahead": Advice(_WARNING,
        "The clock of this host was set back: restart the monitor, so that its times are right again."),
    "no-notices": Advice(_INFO, "Changes are found later: see that the subnet manager works, and its log."),
    "notification-failed": Advice(_WARNING,
        "Find out why the channel fails; notifications are queued and sent later."),
    "collector-missing": Advice(_WARNING,
        "See that the collector runs, that it has the monitor's key, and that its host has a link to the "
        "fabric: its log has the reason."),
    "file-failed": Advice(_WARNING, "See that the file's folder is there, and can be written to."),
    "loop-failed": Advice(_WARNING,
        "Report the traceback in the log of the monitor: one of its tasks fails, and is tried again."),
    "loop-late": Advice(_CRITICAL, "Restart the monitor, and report its log: one of its tasks does not end."),
    "history-stopped": Advice(_WARNING,
        "See that the history's folder is there, and its disk has space, or that the database runs; nothing "
        "else has stopped."),
    "remote-write-stopped": Advice(_WARNING,
        "See that the engine runs, and that its URL and authorization are right; samples are stored, and "
        "sent later."),
    "remote-write-lost": Advice(_WARNING,
        "The history in the engine has a gap: raise the limit of the spill, or let the engine take older "
        "samples."),
}
# fmt: on
"""Advice by the kind of finding."""

_UNKNOWN: Final = Advice(_WARNING, "Read the text of the finding.")


def adviceOn(kind: str) -> Advice:
    """Return the advice on a kind of finding; general advice if the kind is unknown."""
    return ADVICE.get(kind, _UNKNOWN)
