"""C{txrdma smc-option}: installs, shows and removes the eBPF program that adds SMC's TCP option."""

from __future__ import annotations

import grp
from dataclasses import asdict
from pathlib import Path
from typing import Final

from twisted.python import usage

from txrdma.commands.common import options as commandOptions
from txrdma.commands.common.options import columns
from txrdma.commands.common.rows import printJSON
from txrdma.smc.signalling.option.carrier import PINS
from txrdma.smc.signalling.option.filesystems import cgroupRoot
from txrdma.smc.signalling.option.installing import inspect, install, Installation, remove, Users

_INSTALL, _REMOVE, _STATUS = "install", "remove", "status"

_MEANINGS: Final = {
    "synsMarked": "SYNs sent with the option",
    "synAcksMarked": "SYN-ACKs sent with the option",
    "synAcksSeen": "connected to peers that have it",
    "synsSeen": "accepted from peers that have it",
}


class CommandOptions(commandOptions.CommandOptions):
    """Options of C{txrdma smc-option}: the action, directories and users."""

    synopsis = "[options] install|remove|status"
    longdesc = (
        "The Linux kernel uses SMC-R only if the SYN and the SYN-ACK of a TCP connection carry an option "
        "that processes can't set themselves. install loads an eBPF program (sock_ops) that sets it on "
        "sockets whose owners request it, and on no others, until remove or a restart of the host. A "
        "process with CAP_BPF and CAP_NET_ADMIN does not need this: it loads the program itself."
    )
    optFlags = [
        ["everyone", None, "install: all users of this host may use it."],
        ["json", None, "JSON instead of lines."],
    ]
    optParameters = [
        ["group", "g", None, "install: users of this group may use it (default: only root)."],
        ["cgroup", "c", None, "install: the cgroup whose processes may use it (default: all)."],
        ["pins", "p", str(PINS), "Directory in which the program is pinned."],
    ]

    def parseArgs(self, action: str = "", *rest: str) -> None:
        if rest or action not in (_INSTALL, _REMOVE, _STATUS):
            raise usage.UsageError("the action must be install, remove or status")
        self["action"] = action

    def postOptions(self) -> None:
        if self["action"] != _INSTALL:
            for name in ("group", "cgroup", "everyone"):
                if self[name]:
                    raise usage.UsageError(f"--{name} is only valid with install")
        if self["group"] is not None and self["everyone"]:
            raise usage.UsageError("--group and --everyone exclude each other")
        self["users"] = self._users()

    def _users(self) -> Users:
        if self["group"] is None:
            return Users(isEveryone=bool(self["everyone"]))
        try:
            return Users(grp.getgrnam(self["group"]).gr_gid)
        except KeyError:
            raise usage.UsageError(f"--group {self['group']}: there is no such group") from None


async def run(reactor: object, options: CommandOptions) -> None:
    """Run C{txrdma smc-option}; each action then prints the status."""
    pins = Path(options["pins"])
    if options["action"] == _INSTALL:
        install(pins, Path(options["cgroup"]) if options["cgroup"] else cgroupRoot(), options["users"])
    elif options["action"] == _REMOVE:
        remove(pins)
    installation = inspect(pins)
    if options["json"]:
        printJSON(asdict(installation))
    else:
        print(*columns(*rows(installation)), sep="\n")


def rows(found: Installation) -> list[tuple[str, str]]:
    """Return the status as rows of a name and a value."""
    table = [("installed", f"at {found.pins}" if found.isInstalled else "no")]
    if found.isInstalled:
        unseen = "visible only to root"
        table += [
            ("program", unseen if found.program is None else str(found.program)),
            ("cgroup", found.cgroup or (unseen if found.program is None else "gone or not mounted")),
            ("for", _users(found)),
        ]
        table += [(_MEANINGS[name], str(count)) for name, count in (found.counters or {}).items()]
    return [*table, ("this user can use it", "yes" if found.isUsable else f"no: {found.why}")]


def _users(found: Installation) -> str:
    if found.group is None or found.mode is None:
        return "other users"
    if int(found.mode, 8) & 0o006:
        return "everyone"
    if not int(found.mode, 8) & 0o060:
        return "root"
    try:
        return f"group {grp.getgrgid(found.group).gr_name}"
    except KeyError:
        return f"group {found.group}"
