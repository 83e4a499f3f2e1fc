"""
CLC and LLC messages in words.

A sentence goes on behind who says it: "the client" C{"proposes SMC-R version 2.1, ..."}.
"""

from __future__ import annotations

from txrdma.iba.types import MTU
from txrdma.smc.wire.clc import (
    Accept,
    Confirm,
    Decline,
    Diagnosis,
    enterpriseName,
    Message,
    OSType,
    Path,
    Proposal,
    SMCDAccept,
    SMCDConfirm,
)
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkContinuation,
    ConfirmLink,
    ConfirmRKey,
    ConfirmRKeyContinuation,
    DeleteLink,
    DeleteRKey,
    LLC,
    LLCFlags,
    RequestAddLink,
    TestLink,
)

_WHY = {
    Diagnosis.MEM: "no memory, or no buffer",
    Diagnosis.TIMEOUT_CL: "no CLC message or CONFIRM LINK in time",
    Diagnosis.TIMEOUT_AL: "no ADD LINK in time",
    Diagnosis.CNFERR: "a configuration error",
    Diagnosis.PEERNOSMC: "the peer does not say that it speaks SMC",
    Diagnosis.IPSEC: "the connection uses IPsec",
    Diagnosis.NOSMCDEV: "no device for SMC",
    Diagnosis.NOSMCDDEV: "no device for SMC-D",
    Diagnosis.NOSMCRDEV: "no device for SMC-R",
    Diagnosis.NOV2EXT: "the Proposal lacks the version 2 extension",
    Diagnosis.NOSEID: "the systems' EIDs differ",
    Diagnosis.NOUEID: "no user-defined EID in common",
    Diagnosis.RELEASEERR: "not the release that was negotiated",
    Diagnosis.MAXCONNERR: "not the maximum of connections that was negotiated",
    Diagnosis.MAXLINKERR: "not the maximum of links that was negotiated",
    Diagnosis.MODEUNSUPP: "a mode that was not offered",
    Diagnosis.RMBE_EC: "the peer wants eyecatchers in its buffers",
    Diagnosis.OPTUNSUPP: "a socket option that SMC does not have",
    Diagnosis.DIFFPREFIX: "no subnet in common",
    Diagnosis.NOACTLINK: "the link group has no active link",
    Diagnosis.NOSRVLINK: "the server's link is not in the link group",
    Diagnosis.VERSMISMAT: "no version in common",
    Diagnosis.NOROUTE: "no route to the peer's GID",
    Diagnosis.NOINDIRECT: "the peer is behind a router",
    Diagnosis.SYNCERR: "the two ends do not agree which link group it is",
    Diagnosis.PEERDECL: "the peer declined",
    Diagnosis.INTERR: "an internal error",
    Diagnosis.ERR_RTOK: "the peer's buffer is not known, or there are too many",
    Diagnosis.ERR_RDYLNK: "the queue pair did not get ready",
    Diagnosis.ERR_REGBUF: "the buffer could not be registered",
}


def joined(*parts: str) -> str:
    """Join the parts that are not empty by commas."""
    return ", ".join(part for part in parts if part)


def amount(count: int, unit: str = "byte") -> str:
    """A number of things: C{"1 byte"}, C{"4,096 bytes"}."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def reason(diagnosis: Diagnosis) -> str:
    """A diagnosis by name, number and meaning."""
    why = _WHY.get(diagnosis)
    return f"{diagnosis.name} ({diagnosis:#010x})" + (f": {why}" if why else "")


def _host(raw: bytes) -> str:
    return raw.decode("ascii", "backslashreplace").rstrip("\0 ")


# CLC


def ofCLC(message: Message) -> str:
    """A CLC message in words (RFC 7609, A.2)."""
    if isinstance(message, Proposal):
        return _proposal(message)
    if isinstance(message, Decline):
        return _decline(message)
    if isinstance(message, (SMCDAccept, SMCDConfirm)):
        verb = "accepts" if isinstance(message, SMCDAccept) else "confirms"
        return f"{verb} SMC-D version {message.version}, which is not explained here"
    return _answer(message)


def _proposal(message: Proposal) -> str:
    first = ""
    if message.version == 1 or message.typeV1 is not Path.NONE:
        where = f"subnet {_dotted(message.subnet)}/{message.prefixLength}"
        if message.ipv6Prefixes:
            where = amount(len(message.ipv6Prefixes), "IPv6 prefix") + (
                "es" if message.ipv6Prefixes[1:] else ""
            )
        first = f"{_flavour(message.typeV1)} version 1 by {message.gid} ({message.mac}), {where}"
    second = ""
    v2 = message.v2
    if v2 is not None:
        names = " ".join(map(enterpriseName, v2.eids))
        limits = f"up to {v2.maxConnections} connections and {amount(v2.maxLinks, 'link')} in a group"
        second = joined(
            f"{_flavour(message.typeV2)} version 2.{v2.release} by {v2.gid}",
            f"EIDs {names}" if names else "no EID",
            limits if v2.maxConnections else "",
        )
    offers = "; ".join(part for part in (second, first) if part)
    return f"proposes {offers or 'nothing'}; peer ID {message.peerID.hex()}"


def _flavour(path: Path) -> str:
    return {Path.SMC_R: "SMC-R", Path.SMC_D: "SMC-D", Path.BOTH: "SMC-R and SMC-D"}.get(path, str(path.name))


def _dotted(number: int) -> str:
    return ".".join(map(str, number.to_bytes(4, "big")))


def _answer(message: Accept | Confirm) -> str:
    isAccept = isinstance(message, Accept)
    version = str(message.version)
    extension = message.v2
    eid = contact = ""
    if extension is not None:
        eid = f"EID {enterpriseName(extension.eid)}"
        first = extension.firstContact
        if first is not None:
            version = f"2.{first.release}"
            contact = joined(
                f"host {_host(first.hostName)!r}",
                f"{first.osType.name}" if first.osType in tuple(OSType) else "",
                "direct" if first.direct else "behind a router",
            )
            if first.v21 is not None and first.v21.maxConnections:
                limits = f"up to {first.v21.maxConnections} connections, {amount(first.v21.maxLinks, 'link')}"
                contact = joined(contact, limits)
    return joined(
        f"{'accepts' if isAccept else 'confirms'}: SMC-R version {version}",
        eid,
        "first contact" if message.firstContact else "in a link group that there is",
        f"queue pair {message.qpn:#x} of {message.gid}",
        f"ring of {amount(message.size)}: key {message.rkey:#x}, address {message.address:#x}"
        f", element {message.index}",
        f"token {message.token:#x}",
        f"path MTU {mtu(message.mtu)}",
        contact,
    )


def mtu(code: int) -> str:
    """The bytes of an MTU's code, or the code where there is no such MTU."""
    return str(MTU(code).bytes) if code in tuple(MTU) else f"code {code}"


def _decline(message: Decline) -> str:
    sync = ", and forgets the link group" if message.outOfSync else ""
    return f"declines{sync}: {reason(message.diagnosis)}; the connection goes on by TCP"


# LLC


def ofLLC(message: LLC) -> str:
    """An LLC message in words (RFC 7609, A.3)."""
    body = message.body
    if body is None:
        return f"sends an LLC message of type {int(message.type)}, which nobody knows"
    flags, isResponse = message.header.flags, message.isResponse
    if isinstance(body, ConfirmLink):
        limit = f", {amount(body.maxConnections, 'connection')}" if body.maxConnections else ""
        also = " too" if isResponse else ""
        end = f"queue pair {body.qpn:#x} of {body.gid}, up to {amount(body.maxLinks, 'link')}{limit}"
        return f"confirms link {body.link}{also}: {end}"
    if isinstance(body, AddLink):
        return _addLink(message, body)
    if isinstance(body, AddLinkContinuation):
        return f"tells keys of buffers on link {body.link}, {body.remaining} still to come"
    if isinstance(body, DeleteLink):
        which = "all links" if flags & LLCFlags.ALL_LINKS else f"link {body.link}"
        if isResponse:
            return f"has deleted {which}" + (f": {body.reason.name}" if body.reason else "")
        order = ", in order" if flags & LLCFlags.ORDERLY else ", at once"
        return f"deletes {which}{order}: {body.reason.name}"
    if isinstance(body, RequestAddLink):
        return f"asks for a further link: {amount(body.gidCount, 'GID')}, the first is {body.gid}"
    if isinstance(body, ConfirmRKey):
        return _confirmRKey(body, flags, isResponse)
    if isinstance(body, ConfirmRKeyContinuation):
        return f"tells keys of a buffer on further links, {body.remaining} still to come"
    if isinstance(body, TestLink):
        return "is there" if isResponse else "asks whether the other end is there"
    if isinstance(body, DeleteRKey):
        if isResponse:
            return "does not know all of them" if flags & LLCFlags.NEGATIVE else "has forgotten them"
        keys = " ".join(f"{key:#x}" for key in message.deletedRKeys)
        return f"takes back {amount(body.count, 'buffer')}: key {keys}"
    return f"sends {message.type.name}"


def _addLink(message: LLC, body: AddLink) -> str:
    if message.isResponse and message.header.flags & LLCFlags.REJECT:
        why = message.header.rejectReason
        return "rejects a further link" + (f": {why.name}" if why else "")
    keys = f", {amount(len(message.extension.pairs), 'key')}" if message.extension is not None else ""
    verb = "takes the offer of" if message.isResponse else "offers"
    return f"{verb} link {body.link}: queue pair {body.qpn:#x} of {body.gid}, MTU {mtu(body.mtu)}{keys}"


def _confirmRKey(body: ConfirmRKey, flags: LLCFlags, isResponse: bool) -> str:
    others = [f"{each.rkey:#x} on link {each.link}" for each in body.onLinks[: body.others]]
    keys = joined(f"key {body.rkey:#x} at {body.address:#x}", *others)
    if not isResponse:
        return f"has a new buffer: {keys}"
    if flags & LLCFlags.RETRY:
        return f"can't take the buffer now: {keys}"
    return f"{'does not take' if flags & LLCFlags.NEGATIVE else 'takes'} the buffer: {keys}"
