"""
CLC and LLC messages as text.

A text follows the name of the sender: "the client" C{"proposes SMC-R version 2.1, ..."}.
"""

from __future__ import annotations

import ipaddress

from txrdma.iba.types import MTU
from txrdma.smc.wire import llc
from txrdma.smc.wire.clc import (
    Accept,
    Confirm,
    Decline,
    Diagnosis,
    enterpriseName,
    Message,
    OSType,
    Proposal,
    SMCDAccept,
    SMCDConfirm,
    SMCKind,
)

_MEANINGS = {
    Diagnosis.MEM: "no memory, or no buffer",
    Diagnosis.TIMEOUT_CL: "no CLC message or CONFIRM LINK in time",
    Diagnosis.TIMEOUT_AL: "no ADD LINK in time",
    Diagnosis.CNFERR: "a configuration error",
    Diagnosis.PEERNOSMC: "the peer does not signal SMC",
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
    Diagnosis.RMBE_EC: "the peer requires eyecatchers in its buffers",
    Diagnosis.OPTUNSUPP: "a socket option that SMC does not support",
    Diagnosis.DIFFPREFIX: "no subnet in common",
    Diagnosis.NOACTLINK: "the link group has no active link",
    Diagnosis.NOSRVLINK: "the server's link is not in the link group",
    Diagnosis.VERSMISMAT: "no version in common",
    Diagnosis.NOROUTE: "no route to the peer's GID",
    Diagnosis.NOINDIRECT: "the peer is behind a router",
    Diagnosis.SYNCERR: "the peers disagree about the link group",
    Diagnosis.PEERDECL: "the peer declined",
    Diagnosis.INTERR: "an internal error",
    Diagnosis.ERR_RTOK: "the peer's buffer is unknown, or there are too many buffers",
    Diagnosis.ERR_RDYLNK: "the queue pair could not be made ready",
    Diagnosis.ERR_REGBUF: "the buffer could not be registered",
}


def joined(*parts: str) -> str:
    """Join the parts that are not empty with commas."""
    return ", ".join(part for part in parts if part)


def amount(count: int, unit: str = "byte") -> str:
    """Return a number with its unit: C{"1 byte"}, C{"4,096 bytes"}."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def reason(diagnosis: Diagnosis) -> str:
    """Return the name, number and meaning of a diagnosis."""
    meaning = _MEANINGS.get(diagnosis)
    return f"{diagnosis.name} ({diagnosis:#010x})" + (f": {meaning}" if meaning else "")


def _host(raw: bytes) -> str:
    return raw.decode("ascii", "backslashreplace").rstrip("\0 ")


def describeCLC(message: Message) -> str:
    """Return the text of a CLC message (RFC 7609, A.2)."""
    if isinstance(message, Proposal):
        return _proposal(message)
    if isinstance(message, Decline):
        return _decline(message)
    if isinstance(message, (SMCDAccept, SMCDConfirm)):
        verb = "accepts" if isinstance(message, SMCDAccept) else "confirms"
        return f"{verb} SMC-D version {message.version}, which is not decoded further"
    return _answer(message)


def _proposal(message: Proposal) -> str:
    first = ""
    if message.version == 1 or message.typeV1 is not SMCKind.NONE:
        where = f"subnet {ipaddress.IPv4Address(message.subnet)}/{message.prefixLength}"
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


def _flavour(path: SMCKind) -> str:
    names = {SMCKind.SMC_R: "SMC-R", SMCKind.SMC_D: "SMC-D", SMCKind.BOTH: "SMC-R and SMC-D"}
    return names.get(path, str(path.name))


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
        "first contact" if message.firstContact else "existing link group",
        f"queue pair {message.qpn:#x} of {message.gid}",
        f"ring of {amount(message.size)}: key {message.rkey:#x}, address {message.address:#x}"
        f", element {message.index}",
        f"token {message.token:#x}",
        f"path MTU {mtu(message.mtu)}",
        contact,
    )


def mtu(code: int) -> str:
    """Return the size of an MTU in bytes, or its code if the code is reserved."""
    return str(MTU(code).bytes) if code in tuple(MTU) else f"code {code}"


def _decline(message: Decline) -> str:
    sync = ", out of sync" if message.outOfSync else ""
    return f"declines{sync}: {reason(message.diagnosis)}; the connection continues on TCP"


def describeLLC(message: llc.LLC) -> str:
    """Return the text of an LLC message (RFC 7609, A.3)."""
    body = message.body
    if body is None:
        return f"sends an LLC message of unknown type {int(message.type)}"
    flags, isResponse = message.header.flags, message.isResponse
    if isinstance(body, llc.ConfirmLink):
        limit = f", {amount(body.maxConnections, 'connection')}" if body.maxConnections else ""
        response = " (response)" if isResponse else ""
        end = f"queue pair {body.qpn:#x} of {body.gid}, up to {amount(body.maxLinks, 'link')}{limit}"
        return f"confirms link {body.link}{response}: {end}"
    if isinstance(body, llc.AddLink):
        return _addLink(message, body)
    if isinstance(body, llc.AddLinkContinuation):
        return f"announces keys of buffers on link {body.link}, {body.remaining} remaining"
    if isinstance(body, llc.DeleteLink):
        which = "all links" if flags & llc.LLCFlags.ALL_LINKS else f"link {body.link}"
        if isResponse:
            return f"confirms that {which} is deleted" + (f": {body.reason.name}" if body.reason else "")
        order = ", orderly" if flags & llc.LLCFlags.ORDERLY else ", immediately"
        return f"deletes {which}{order}: {body.reason.name}"
    if isinstance(body, llc.RequestAddLink):
        return f"requests another link: {amount(body.gidCount, 'GID')}, the first is {body.gid}"
    if isinstance(body, llc.ConfirmRKey):
        return _confirmRKey(body, flags, isResponse)
    if isinstance(body, llc.ConfirmRKeyContinuation):
        return f"announces keys of a buffer on more links, {body.remaining} remaining"
    if isinstance(body, llc.TestLink):
        return "responds to the test of the link" if isResponse else "tests the link"
    if isinstance(body, llc.DeleteRKey):
        if isResponse:
            isFailed = flags & llc.LLCFlags.NEGATIVE
            return "could not delete all keys" if isFailed else "confirms that the keys are deleted"
        keys = " ".join(f"{key:#x}" for key in message.deletedRKeys)
        return f"deletes {amount(body.count, 'buffer')}: key {keys}"
    return f"sends {message.type.name}"


def _addLink(message: llc.LLC, body: llc.AddLink) -> str:
    if message.isResponse and message.header.flags & llc.LLCFlags.REJECT:
        why = message.header.rejectReason
        return "rejects another link" + (f": {why.name}" if why else "")
    keys = f", {amount(len(message.extension.pairs), 'key')}" if message.extension is not None else ""
    verb = "accepts" if message.isResponse else "adds"
    return f"{verb} link {body.link}: queue pair {body.qpn:#x} of {body.gid}, MTU {mtu(body.mtu)}{keys}"


def _confirmRKey(body: llc.ConfirmRKey, flags: llc.LLCFlags, isResponse: bool) -> str:
    others = [f"{each.rkey:#x} on link {each.link}" for each in body.onLinks[: body.others]]
    keys = joined(f"key {body.rkey:#x} at {body.address:#x}", *others)
    if not isResponse:
        return f"announces a buffer: {keys}"
    if flags & llc.LLCFlags.RETRY:
        return f"can't accept the buffer now: {keys}"
    return f"{'rejects' if flags & llc.LLCFlags.NEGATIVE else 'accepts'} the buffer: {keys}"
