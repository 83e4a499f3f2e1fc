"""
Recordings of a fabric: its nodes and links, and the answers to all requests of the checks and for its tables.

The checks of a recording are those of the fabric: L{RecordedRPCs} answers their requests from it. Answers are
stored as they were received, by the LID of the port that has given them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Union

from typing_extensions import Unpack

from twisted.internet.defer import Deferred, fail, succeed

from txrdma.fabric.model import Fabric
from txrdma.fabric.routing import blocksOf
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import RPCS
from txrdma.mad.layouts.sa import Query
from txrdma.mad.layouts.smp import LinearForwardingTable
from txrdma.mad.registers import AccessRegister, ModuleInfo
from txrdma.mad.rpcs import CallOptions, RPCs

Answer = Union[bytes, int, list[bytes]]
"""An encoded attribute; the MAD status of a refusal; or several records. There is none without an answer."""

Answers = dict[tuple[str, str], dict[tuple[int, int], Answer]]
"""
Answers by the names of the call and the attribute, and by the LID and the part: the attribute modifier,
PortSelect, or the number of paths of a query, which has the LID of its source. The part of an answer with a
register is the number of the register and the port, of eight bits.
"""

_PORT: Final = 0xFF


@dataclass(slots=True)
class Recording:
    """
    A fabric at one time.

    @ivar at: time at which the recording began, in seconds since 1970; 0 if unknown.
    @ivar endPort: LIDs of the port that has made the requests, and of its SM.
    @ivar answers: recorded answers; empty if only nodes and links are known.
    """

    fabric: Fabric
    at: float = 0.0
    endPort: MADEndPort = field(default_factory=lambda: MADEndPort(GUID(bytes(8)), ()))
    answers: Answers = field(default_factory=dict)

    def of(self, rpc: str, name: str) -> dict[tuple[int, int], Answer]:
        """Return the answers to one call for one attribute, by LID and part."""
        return self.answers.get((rpc, name), {})

    def linearTables(self) -> dict[GUID, bytes]:
        """Return the linear forwarding tables of the switches that were read as a whole, by GUID."""
        answers = self.of("SubnGet", LinearForwardingTable.__name__)
        tables: dict[GUID, bytes] = {}
        for node in self.fabric.switches():
            if (info := node.switchInfo) is not None:
                wanted = [answers.get((node.lid, block)) for block in range(blocksOf(info))]
                blocks = [answer for answer in wanted if isinstance(answer, bytes)]
                if len(blocks) == len(wanted):
                    tables[node.guid] = b"".join(blocks)
        return tables


def registerOf(part: int) -> tuple[int, int]:
    """Return the number of the register and the port of the part of an answer."""
    return part >> 8, part & _PORT


def keyOf(payload: Any, path: IBPath | None, modifier: int) -> tuple[str, tuple[int, int]]:
    """Return the name of the requested attribute, and the identity of the request among those for it."""
    if isinstance(payload, Query):
        found = payload.record
        return type(found).__name__, (getattr(found, "slid", 0), getattr(found, "numbPath", 0))
    kind = payload if isinstance(payload, type) else type(payload)
    part = getattr(payload, "portSelect", modifier) if payload is not kind else modifier
    if isinstance(payload, AccessRegister):
        part = modifier << 8 | ModuleInfo.decode(payload.content[: ModuleInfo.size]).localPort
    return kind.__name__, (0 if path is None else int(path.dlid), part)


class RecordedRPCs(RPCs):
    """Makes calls of which the answers are in a recording; others have no answer."""

    retries = 0

    def __init__(self, recording: Recording) -> None:
        self._answers = recording.answers

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        name, key = keyOf(payload, path, attributeModifier)
        answer = self._answers.get((rpc, name), {}).get(key)
        where = IBPath() if path is None else path
        if answer is None:
            return fail(MADTimeoutError(f"{rpc}: no answer", RPCS[rpc], where))
        if isinstance(answer, int):
            return fail(MADError(RPCS[rpc], where, answer, b"", b""))
        sent = payload.record if isinstance(payload, Query) else payload
        kind: Any = sent if isinstance(sent, type) else type(sent)
        if isinstance(answer, list):
            return succeed([kind.decode(one) for one in answer])
        return succeed(kind.decode(answer))
