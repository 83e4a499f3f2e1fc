"""C{txrdma query}: makes any management call of the specification, with any fields."""

from __future__ import annotations

from typing import Any

from txrdma.commands.common import attributefields
from txrdma.commands.common.attributefields import assigned, attributeDict
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import FabricOptions, opened, Session, TARGETS, where
from txrdma.commands.common.values import count, field, unsigned
from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.mad.core.frames import Keys
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method, RPC
from txrdma.mad.layouts.sa import Record

_VENDORS = (range(0x09, 0x10), range(0x30, 0x50))
_HARMLESS = (Method.GET, Method.GET_TABLE, Method.GET_MULTI, Method.GET_TRACE_TABLE)


class CommandOptions(FabricOptions):
    """Options of C{txrdma query}: the call, its target, and its fields."""

    synopsis = "[options] RPC ATTRIBUTE [TARGET] [FIELD=VALUE...]"
    longdesc = (
        "Make any call by its name in the specification, as SubnGet PortInfo 3 --modifier 1, and show "
        "the answer. Fields are named as --json shows them; those of nested structures with a dot, and "
        "elements of arrays as name[3]. For SA records, the fields select records. ATTRIBUTE may be a "
        "number, as 0xff90: then the answer is shown in hexadecimal. " + TARGETS + " SA calls go to the SA."
    )
    optFlags = [
        ["change", None, "For a Set: get the attribute first, and change only the given fields."],
        ["yes", "y", "Do not ask for confirmation before a change."],
    ]
    optParameters = [
        ["modifier", "m", 0, "Attribute modifier.", unsigned(32)],
        ["smkey", None, 0, "SM_Key for SA calls.", unsigned(64)],
        ["bkey", None, 0, "B_Key for BM calls.", unsigned(64)],
        ["cckey", None, 0, "CC_Key for CongMgt calls.", unsigned(64)],
        ["class", None, None, "Management class of Vend calls, as 0x0a.", count],
        ["oui", None, 0, "OUI of Vend calls with a class from 0x30 on.", unsigned(24)],
    ]

    def parseArgs(self, rpc: str, attribute: str, *rest: str) -> None:  # type: ignore[override]  # Twisted counts arguments
        self["rpc"], self["attribute"] = rpc, attribute
        isTarget = bool(rest) and "=" not in rest[0]
        self["target"] = rest[0] if isTarget else ""
        self["fields"] = [field(each) for each in rest[isTarget:]]


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma query}: make the call, print the answer."""
    rpc = attributefields.rpcNamed(options["rpc"])
    kind = _kind(options, rpc)
    keys = Keys(*(options[name] for name in ("mkey", "smkey", "bkey", "cckey")))
    with opened(reactor, options) as session:
        path = await _path(session, rpc, options["target"])
        payload = await _payload(session, rpc, kind, path, keys)
        if rpc.method not in _HARMLESS:
            await session.confirmed(f"{rpc.name} {kind.__name__} to {where(path)}", path)
            if options["change"]:  # other fields may have changed while the prompt waited
                payload = await _payload(session, rpc, kind, path, keys)
        answer = await session.rpcs.call(rpc.name, payload, path, options["modifier"], keys=keys)
    show(answer, options["json"])


def _kind(options: CommandOptions, rpc: RPC) -> type[Attribute]:
    """Return the type of the call's attribute by name or number; raise L{InvalidRequest} without one."""
    text = options["attribute"]
    try:
        number = int(text, 0)
    except ValueError:
        return attributefields.attributeNamed(text, rpc)
    if not 0 <= number <= 0xFFFF:
        raise InvalidRequest(f"attribute {text}: expected a number from 0 to 0xffff")
    if options["class"] is None:
        return attributefields.rawAttribute(rpc, number)
    if rpc.managementClass is not ManagementClass.VENDOR_09:
        raise InvalidRequest(f"--class: {rpc.name} has a fixed class")
    if not any(options["class"] in classes for classes in _VENDORS):
        raise InvalidRequest(f"--class {options['class']:#x}: vendors' are 0x09 to 0x0f and 0x30 to 0x4f")
    return attributefields.rawAttribute(rpc, number, ManagementClass(options["class"]), options["oui"])


async def _path(session: Session, rpc: RPC, target: str) -> IBPath:
    if rpc.managementClass is ManagementClass.SUBN_LID:
        return await session.toManagement(target)
    if rpc.managementClass is ManagementClass.SUBN_ADM and not target:
        return session.sa
    return await session.toServices(target)


async def _payload(session: Session, rpc: RPC, kind: type[Attribute], path: IBPath, keys: Keys) -> Any:
    options = session.options
    fields = options["fields"]
    if issubclass(kind, Record):
        return attributefields.queried(kind, fields)
    base = None
    if options["change"]:
        getting = rpc.name.removesuffix("Set") + "Get"
        if rpc.method is not Method.SET or getting not in kind.rpcs:
            raise InvalidRequest(f"--change: it is not possible with {rpc.name} {kind.__name__}")
        # The node itself is queried also with --sa: the SA may have an older attribute, or one without keys.
        asked: Any = kind
        if any(each.name == "portSelect" for each in kind.fields):
            selected: Any = assigned(kind, fields)
            asked = kind(portSelect=selected.portSelect)  # type: ignore[call-arg]  # just checked
        present = await session.agent.call(getting, asked, path, options["modifier"], keys=keys)
        base = attributefields.forSetting(present)
    return assigned(kind, fields, base)


def show(answer: Any, asJSON: bool) -> None:
    """Print an answer, which has one attribute, several, or none."""
    several = answer if isinstance(answer, list) else [] if answer is None else [answer]
    if asJSON:
        shown = [{"attribute": type(each).__name__, "fields": attributeDict(each)} for each in several]
        printJSON(shown if isinstance(answer, list) else shown[0] if shown else None)
        return
    for number, each in enumerate(several):
        if number:
            print()
        print(f"# {type(each).__name__}")
        print("\n".join(attributefields.dumpLines(each.encode())) if attributefields.isRaw(each) else each)
    if answer is None:
        print("sent")
