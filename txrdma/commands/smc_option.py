"""
C{txrdma smc-option}: installs, shows and removes the program that lets sockets have SMC's TCP option.
"""

from __future__ import annotations

import grp
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from twisted.python import usage

from txrdma.commands.common import options as commandOptions
from txrdma.commands.common.options import columns
from txrdma.smc.signalling.option.carrier import PINS
from txrdma.smc.signalling.option.installing import install, Installation, look, remove, Users
from txrdma.smc.signalling.option.places import cgroupRoot

_INSTALL, _REMOVE, _STATUS = "install", "remove", "status"

_MEANINGS: Final = {
    "synsMarked": "SYNs sent with the option",
    "synAcksMarked": "SYN-ACKs sent with the option",
    "synAcksSeen": "connected to peers that have it",
    "synsSeen": "accepted from peers that have it",
}


class CommandOptions(commandOptions.CommandOptions):
    """Options of C{txrdma smc-option}: the action, its places, and the users concerned."""

    synopsis = "[options] install|remove|status"
    longdesc = (
        "The Linux kernel speaks SMC-R only where the SYN and the SYN-ACK of a TCP connection had an option "
        "that processes can't set by themselves. install loads a program (sock_ops, eBPF) that sets it on "
        "sockets whose owners ask for it, and on no others; it stays until remove, or the host's next start. "
        "A service with CAP_BPF and CAP_NET_ADMIN does without: it loads the same for itself."
    )
    optFlags = [
        ["everyone", None, "install: all users of this host may use it."],
        ["json", None, "JSON instead of lines."],
    ]
    optParameters = [
        ["group", "g", None, "install: users of this group may use it; only root else."],
        ["cgroup", "c", None, "install: the cgroup whose processes may use it; all else."],
        ["pins", "p", str(PINS), "The directory in which it is kept."],
    ]

    def parseArgs(self, action: str = "", *rest: str) -> None:
        if rest or action not in (_INSTALL, _REMOVE, _STATUS):
            raise usage.UsageError("say install, remove or status")
        self["action"] = action

    def postOptions(self) -> None:
        if self["action"] != _INSTALL:
            for name in ("group", "cgroup", "everyone"):
                if self[name]:
                    raise usage.UsageError(f"--{name} is for install")
        if self["group"] is not None and self["everyone"]:
            raise usage.UsageError("say --group or --everyone")
        self["users"] = self._users()

    def _users(self) -> Users:
        if self["group"] is None:
            return Users(isEveryone=bool(self["everyone"]))
        try:
            return Users(grp.getgrnam(self["group"]).gr_gid)
        except KeyError:
            raise usage.UsageError(f"--group {self['group']}: there is no such group") from None


async def run(reactor: object, options: CommandOptions) -> None:
    """Carry out C{txrdma smc-option}; each action ends with printing what is installed then."""
    pins = Path(options["pins"])
    if options["action"] == _INSTALL:
        install(pins, Path(options["cgroup"]) if options["cgroup"] else cgroupRoot(), options["users"])
    elif options["action"] == _REMOVE:
        remove(pins)
    found = look(pins)
    if options["json"]:
        print(json.dumps(asdict(found), indent=2))
    else:
        for line in columns(*told(found)):
            print(line)


def told(found: Installation) -> list[tuple[str, str]]:
    """An installation of the eBPF program as rows of a name and a value, for a table."""
    rows = [("installed", f"at {found.pins}" if found.isInstalled else "no")]
    if found.isInstalled:
        unseen = "only root may see it"
        rows += [
            ("program", unseen if found.program is None else str(found.program)),
            ("cgroup", found.cgroup or (unseen if found.program is None else "gone, or not to be seen here")),
            ("for", _users(found)),
        ]
        rows += [(_MEANINGS[name], str(count)) for name, count in (found.counters or {}).items()]
    return [*rows, ("this user can use it", "yes" if found.isUsable else f"no: {found.why}")]


def _users(found: Installation) -> str:
    if found.group is None or found.mode is None:
        return "others than this user"
    if int(found.mode, 8) & 0o006:
        return "everyone"
    if not int(found.mode, 8) & 0o060:
        return "root"
    try:
        return f"group {grp.getgrgid(found.group).gr_name}"
    except KeyError:
        return f"group {found.group}"
