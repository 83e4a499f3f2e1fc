"""C{txrdma sminfo}: shows or changes the state and priority of a subnet manager, by its SMInfo."""

from __future__ import annotations

from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.attributefields import assigned, attributeDict
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import FabricOptions, opened, Session, TARGETS, where
from txrdma.commands.common.values import unsigned
from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBPath
from txrdma.mad.layouts.smp import SMInfo

CONTROLS: Final = {"handover": 1, "acknowledge": 2, "disable": 3, "standby": 4, "discover": 5}
"""Attribute modifiers of a Set of SMInfo, by which one SM controls another (IBA 14.4.1)."""


class CommandOptions(FabricOptions):
    """Options of C{txrdma sminfo}: the SM, and the control packet."""

    synopsis = "[options] [TARGET]"
    longdesc = (
        "Show the SMInfo of the subnet manager known to the local port, or of the one at TARGET. "
        "--control sends it a control packet, which may leave the fabric without a manager. " + TARGETS
    )
    optFlags = [["yes", "y", "Do not ask for confirmation before --control."]]
    optParameters = [
        ["control", "c", "", "Send a control packet: " + ", ".join(CONTROLS) + "."],
        ["state", None, "", "--control: state: NOT_ACTIVE, DISCOVERING, STANDBY or MASTER."],
        ["priority", "p", "", "--control: priority, 0 to 15."],
        ["activity", "a", "", "--control: the activity count.", unsigned(32)],
    ]

    def parseArgs(self, target: str = "") -> None:
        self["target"] = target

    def postOptions(self) -> None:
        if self["control"] and self["control"] not in CONTROLS:
            raise usage.UsageError(f"--control {self['control']}: expected one of {', '.join(CONTROLS)}")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma sminfo}: print an SM's SMInfo; with C{--control}, set it first."""
    with opened(reactor, options) as session:
        path = await _path(session)
        if options["control"]:
            await session.confirmed(f"{options['control']} to the subnet manager at {where(path)}", path)
            info = await session.agent.SubnGet(SMInfo, path)
            info = await session.agent.SubnSet(_changed(options, info), path, CONTROLS[options["control"]])
        else:
            info = await session.rpcs.SubnGet(SMInfo, path)
    if options["json"]:
        printJSON({"path": where(path), **attributeDict(info)})
        return
    print(
        f"sminfo: sm {where(path)} sm guid 0x{int(info.guid):x}, activity count {info.actCount} "
        f"priority {info.priority} state {int(info.smState)} SMINFO_{info.smState.name.replace('_', '')}"
    )


async def _path(session: Session) -> IBPath:
    if session.options["target"]:
        return await session.toManagement(session.options["target"])
    if not session.endPort.smLID:
        raise DeviceUnavailable("the local port knows no subnet manager; give its TARGET")
    return session.sa


def _changed(options: CommandOptions, info: SMInfo) -> SMInfo:
    fields = {"smState": options["state"], "priority": options["priority"], "actCount": options["activity"]}
    changed = assigned(SMInfo, [(name, str(text)) for name, text in fields.items() if text != ""], info)
    assert isinstance(changed, SMInfo)
    return changed
