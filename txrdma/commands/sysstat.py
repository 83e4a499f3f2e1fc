"""C{txrdma sysstat}: queries a host's name and processors by management datagrams."""

from __future__ import annotations

from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.serving import served
from txrdma.commands.common.session import FabricOptions, opened, TARGETS
from txrdma.kit.strings import printable
from txrdma.mad.vendor import OpenIBCPUInfo, OpenIBHostInfo, OpenIBSystemPing, serveSysstat, VendorText

KINDS: Final[dict[str, type[VendorText]]] = {
    "ping": OpenIBSystemPing,
    "host": OpenIBHostInfo,
    "cpu": OpenIBCPUInfo,
}


class CommandOptions(FabricOptions):
    """Options of C{txrdma sysstat}: the host, and the operation."""

    synopsis = "[options] TARGET [ping|host|cpu]"
    longdesc = (
        "Query a host's name or processors by the vendor class of infiniband-diags' ibsysstat; "
        "interoperates with its servers and clients. Without an operation, all of them are queried. "
        + TARGETS
        + " The other end is txrdma sysstat --server, or ibsysstat -S; in ibsim that needs a port as "
        "ibsim:NODE:sm=yes."
    )
    optFlags = [["server", "S", "Run as the server, until Ctrl-C."]]

    def parseArgs(self, target: str = "", kind: str = "", *rest: str) -> None:
        if rest or kind not in ("", *KINDS):
            raise usage.UsageError(f"expected TARGET and optionally one of {', '.join(KINDS)}")
        self["target"], self["kind"] = target, kind

    def postOptions(self) -> None:
        if bool(self["target"]) == bool(self["server"]):
            raise usage.UsageError("expected TARGET, or --server")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma sysstat} as client or server."""
    if options["server"]:
        await served(reactor, options, serveSysstat)
        return
    wanted = [options["kind"]] if options["kind"] else ["host", "cpu"]
    answers = {}
    with opened(reactor, options) as session:
        path = await session.toServices(options["target"])
        for kind in wanted:
            answers[kind] = (await session.agent.VendGet(KINDS[kind], path)).text
    if options["json"]:
        printJSON(answers)
        return
    for kind, text in answers.items():
        lines = ["sysstat ping succeeded"] if kind == "ping" else text.splitlines()
        print(*map(printable, lines), sep="\n")
