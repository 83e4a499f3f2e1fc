"""The device that C{device=auto} selects for connections to a host, with reasons."""

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
class DeviceChoice:
    """
    The device that connections to a host would use.

    @ivar address: the address of the host that a TCP connection would use.
    @ivar own: the local address of such a connection.
    @ivar interface: the network interface of the local address.
    @ivar network: PNET ID of that interface; empty if it has none.
    @ivar device: device string; empty for plain TCP.
    @ivar port: port number of the device; None if it has only one port.
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


def deviceChoiceFor(host: str) -> DeviceChoice:
    """
    Return the device that C{device=auto} would select for a host, without connecting to it.

    @raise DeviceUnavailable: the host has no address or no route, or the system does not list its interfaces.
    """
    address, own = _ends(host)
    networks = Networks.read()
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
    return DeviceChoice(host, address, own, name, finding.network, device, port, tuple(why))


def _withoutPorts(networks: Networks, address: str) -> tuple[str, bool]:
    """Return why shared memory or plain TCP is used instead of RDMA ports, and whether the host is local."""
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
    """Return the remote and the local address of connections to a host."""
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


def linesOf(choice: DeviceChoice) -> Iterator[str]:
    """Return the choice of a device as lines of text."""
    device = choice.device or "none: plain TCP"
    if choice.port is not None:
        device += f", port {choice.port}"
    rows = [
        ("host", f"{choice.host}, {choice.address}" if choice.host != choice.address else choice.host),
        ("from", f"{choice.own}, {choice.interface}" if choice.interface else choice.own),
        ("network", choice.network or "none"),
        ("device", device),
        *(("why" if number == 0 else "", each) for number, each in enumerate(choice.why)),
    ]
    return columns(*rows)
