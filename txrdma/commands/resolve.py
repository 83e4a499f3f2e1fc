"""C{txrdma resolve}: explains how a host and a port are resolved to a service ID, a device and a path."""

from __future__ import annotations

import re
from typing import Any

from twisted.python import usage

from txrdma.cm.connections.adapter import heldAdapter
from txrdma.cm.connections.datagrams import DatagramClientEndpoint, DatagramProtocol
from txrdma.cm.connections.endpoints import LIFE_TIME
from txrdma.cm.connections.hostnames import addressesOf
from txrdma.cm.core.exchange import RetryPolicy
from txrdma.cm.layouts.ipcm import portOf, PortSpace, serviceIDOf
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.terms import Terms
from txrdma.commands.common.options import CommandOptions as BaseOptions
from txrdma.commands.common.options import IReactor
from txrdma.commands.common.rows import printJSON
from txrdma.iba.path import IBPath, lifetimeSeconds
from txrdma.iba.types import GID
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.softdevices import softDeviceAt, softDeviceTo

_HOPS = 64
_HOST_AND_PORT = re.compile(r"(rdma:)?(\[(?P<ipv6>.+)\]|(?P<host>[^:]+)):(?P<port>[^:]+)")


class CommandOptions(BaseOptions):
    """Options of C{txrdma resolve}: a host and a port, or a service ID."""

    synopsis = "[options] HOST PORT | HOST:PORT | SERVICE"
    longdesc = (
        "Explain rdma:HOST:PORT: the host's addresses, the service ID, the device and the path of "
        "packets, and the time after which a connection to a silent host fails. Or explain a service ID, "
        "decimal or hexadecimal (0x). Sends nothing without --ask."
    )
    optFlags = [
        ["json", None, "JSON instead of lines."],
        ["udp", "u", "The port belongs to RDMA CM's UDP port space, for datagrams."],
        ["ask", None, "With --udp: query the service's queue pair by a SIDR_REQ."],
    ]
    optParameters = [
        ["bind", "I", None, "The IP address to connect from."],
        ["device", None, None, "RDMA device. [default: soft: at the address]"],
    ]

    def parseArgs(self, what: str = "", port: str = "") -> None:
        if not port and (together := _HOST_AND_PORT.fullmatch(what)):
            what, port = together["ipv6"] or together["host"], together["port"]
        self["what"], self["port"] = what, port

    def postOptions(self) -> None:
        port = self["port"]
        text, limit = (port, 1 << 16) if port else (self["what"], 1 << 64)
        try:
            self["number"] = int(text, 10 if port else 0)
        except ValueError:
            self["number"] = -1
        if not bool(port) <= self["number"] < limit:
            kinds = "a port, 1 to 65535" if port else "a service ID, or a host and a port"
            raise usage.UsageError(f"{text!r} is not {kinds}")
        if self["ask"] and not (self["udp"] and self["port"]):
            raise usage.UsageError("--ask needs --udp, a host and a port")


def serviceDict(serviceID: int) -> dict[str, Any]:
    """Return the port space and port of a service ID, or None for both."""
    found = portOf(serviceID)
    space, port = (None, None) if found is None else (found[0].name, found[1])
    return {"id": serviceID, "portSpace": space, "port": port}


async def resolved(reactor: Any, options: CommandOptions) -> dict[str, Any]:
    """
    Return the service ID, addresses, device, path and timeouts for a host and a port.

    @raise txrdma.error.RDMAError: the host has no address, or there is no route to it.
    """
    host, bind = options["what"], options["bind"]
    addresses = await addressesOf(reactor, host)
    address = addresses[0]
    device = options["device"] or (softDeviceAt(bind) if bind else softDeviceTo(address))
    with heldAdapter(reactor, device) as adapter:
        source = adapter.sourceGID(GID.fromIP(address))
        port, index = adapter.requireGID(source)
        mtu = int(adapter.mtuOf(port).bytes)
    path = IBPath(sgid=source, dgid=GID.fromIP(address), hopLimit=_HOPS, packetLifeTime=LIFE_TIME)
    terms = Terms()
    request = RetryPolicy(terms.responseTimeout, LIFE_TIME, terms.maxCMRetries)
    space = PortSpace.UDP if options["udp"] else PortSpace.TCP
    found: dict[str, Any] = {
        "service": serviceDict(serviceIDOf(space, options["number"])),
        "host": host,
        "addresses": addresses,
        "device": device,
        "port": port,
        "gidIndex": index,
        "path": str(path),
        "mtuBytes": mtu,
        "packetLifeSeconds": lifetimeSeconds(LIFE_TIME),
        "ackTimeoutSeconds": lifetimeSeconds(pathFor(path).localACKTimeout),
        "retryCount": terms.retryCount,
        "requestSeconds": request.seconds,
        "requestRetries": terms.maxCMRetries,
    }
    if options["ask"]:
        endpoint = DatagramClientEndpoint(reactor, address, options["number"], device)
        protocol = await endpoint.connect(MessageFactory(DatagramProtocol))
        peer = protocol.transport.peer
        assert peer is not None  # a client has a peer
        protocol.transport.loseConnection()
        found["answer"] = {"qpn": peer.qpn, "qkey": peer.qkey, "privateData": peer.privateData.hex()}
    return found


def explained(service: dict[str, Any]) -> str:
    """Return a service ID and its meaning as text."""
    if service["portSpace"] is None:
        return f"{service['id']:#018x}: none of RDMA CM's; ib:service={service['id']:#x} connects to it"
    return f"{service['id']:#018x}: port {service['port']} of RDMA CM's {service['portSpace']} port space"


def lines(found: dict[str, Any]) -> list[str]:
    """Return the result of L{resolved} as lines of text."""
    others = ", ".join(found["addresses"][1:])
    silent = found["requestSeconds"] * (1 + found["requestRetries"])
    what = "REQ" if found["service"]["portSpace"] == "TCP" else "SIDR_REQ"
    packets = f"again after {found['ackTimeoutSeconds']:.2f} s, {found['retryCount']} times"
    requests = f"again after {found['requestSeconds']:.2f} s, {found['requestRetries']} times"
    shown = [
        f"host     {found['host']}: {found['addresses'][0]}" + (f"; then {others}" if others else ""),
        f"service  {explained(found['service'])}",
        f"device   {found['device']}: port {found['port']}, GID {found['gidIndex']}",
        f"path     {found['path']}",
        f"packets  {found['mtuBytes']} bytes of payload; {packets}",
        f"{what:8} {requests}; the peer is silent after {silent:.1f} s",
    ]
    if "answer" in found:
        answer = found["answer"]
        shown.append(f"answer   queue pair {answer['qpn']:#x}, Q_Key {answer['qkey']:#010x}")
    return shown


async def run(reactor: IReactor, options: CommandOptions) -> None:
    """Run C{txrdma resolve}: explain a service ID, or the path to a host."""
    if not options["port"]:
        service = serviceDict(options["number"])
        if options["json"]:
            printJSON(service)
        else:
            print(explained(service))
        return
    found = await resolved(reactor, options)
    if options["json"]:
        printJSON(found)
    else:
        print(*lines(found), sep="\n")
