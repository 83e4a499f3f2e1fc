"""Choice of a device for connections to a host, as C{device=auto} makes it, with reasons."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator

from txrdma.commands.common.options import columns
from txrdma.error import DeviceUnavailable
from txrdma.kit.values import frozen
from txrdma.ports.pnet import Networks
from txrdma.smc.common.realports import hasPyverbs
from txrdma.smc.terms.options import LOCAL_DEVICE, USUAL


@frozen
class Outlook:
    """
    Device that connections to a host would use.

    @ivar address: the first address of the host, to which a TCP connection would go; C{own} is our end's
        address.
    @ivar interface: network interface that the connection would leave by.
    @ivar network: PNET ID of that interface; empty when it has none.
    @ivar device: device string; empty for plain TCP.
    @ivar port: port number of the device; None where it has only one.
    @ivar why: the reasons, as sentences.
    """

    host: str
    address: str
    own: str
    interface: str
    network: str
    device: str
    port: int | None
    why: tuple[str, ...]


def outlookFor(host: str) -> Outlook:
    """
    Look at addresses, interfaces, ports and tables as C{device=auto} does, and connect to nobody.

    @raise DeviceUnavailable: the host has no address, no way leads there, or the system does not tell.
    """
    address, own = _ends(host)
    networks = Networks.look()
    interface = networks.interfaceOf(own, address)
    finding = networks.portFor(own, address)
    device, port, why = "", None, [f"{finding.reason}."]
    if finding.port is not None and hasPyverbs():
        device, port = f"pyverbs:{finding.port.device}", finding.port.number
        why.append(
            "The other end has to have a port in the same network, and both have to know that they speak SMC."
        )
    else:
        if finding.port is not None:
            why.append("But pyverbs is not installed, by which it would be opened.")
        more, isLocal = _withoutPorts(networks, address)
        why.append(more)
        device = LOCAL_DEVICE if isLocal else ""
    name = "" if interface is None else interface.name
    return Outlook(host, address, own, name, finding.network, device, port, tuple(why))


def _withoutPorts(networks: Networks, address: str) -> tuple[str, bool]:
    """Reason for shared memory or plain TCP where no RDMA port will do, and True for shared memory."""
    if networks.interfaceOf(address, address) is not None:
        text = f"{address} is this host's: memory is shared with processes of {_userName()}, else plain TCP."
        return text, True
    directory = USUAL.meetingDirectory
    if not directory:
        return f"{address} is not this host's, and TXRDMA_RUNTIME names no directory: plain TCP.", False
    text = f"{address} is of another network namespace or host: memory is shared with a listener"
    return f"{text} that is found in {directory}, else plain TCP.", False


def _userName() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _ends(host: str) -> tuple[str, str]:
    """The host's address and our own for connections to it."""
    try:
        found = socket.getaddrinfo(host, 1, 0, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise DeviceUnavailable(f"{host} has no address: {error}") from error
    reason: OSError | None = None
    for family, kind, _, _, target in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(target)
                return str(target[0]), str(probe.getsockname()[0])
        except OSError as error:
            reason = error
    raise DeviceUnavailable(f"no route to {host}: {reason}")


def told(outlook: Outlook) -> Iterator[str]:
    """Lines of an outlook for people."""
    device = outlook.device or "none: plain TCP"
    if outlook.port is not None:
        device += f", port {outlook.port}"
    rows = [
        ("host", f"{outlook.host}, {outlook.address}" if outlook.host != outlook.address else outlook.host),
        ("from", f"{outlook.own}, {outlook.interface}" if outlook.interface else outlook.own),
        ("network", outlook.network or "none"),
        ("device", device),
        *(("why" if number == 0 else "", each) for number, each in enumerate(outlook.why)),
    ]
    return columns(*rows)
