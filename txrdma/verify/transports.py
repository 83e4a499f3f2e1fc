"""Endpoint strings of the verified streams."""

from __future__ import annotations

from txrdma.ports.softdevices import softDeviceListening, softDeviceTo
from txrdma.verify.subject import TestedPort

_SOFT = "soft"
"""The device string of the software device that every endpoint uses by default."""


def _keys(end: TestedPort, *more: str) -> str:
    """Return the keys of an endpoint string, with a leading colon."""
    device = end.device.replace("\\", "\\\\").replace(":", "\\:").replace("=", "\\=")
    keys = more if end.device == _SOFT else (f"device={device}", *more)
    return "".join(f":{key}" for key in keys)


def listening(end: TestedPort, address: str) -> dict[str, str]:
    """
    Return the endpoint strings of servers on any free port, by their kind; C{rsocket} needs an IP address.

    @param address: IP address at which TCP connections are accepted.
    """
    address = address.replace(":", "\\:")
    found = {
        "tcp": f"tcp:0:interface={address}",
        "smc": f"smc:{address}:0{_keys(end)}",
        "btl": f"btl:{address}:0{_keys(end)}",
    }
    if end.address:
        found["rsocket"] = f"rsocket:{end.address}:0{_keys(end)}"
    return found


def connecting(kind: str, end: TestedPort, host: str, port: object) -> str:
    """Return the endpoint string of a client; for C{rsocket}, the host is the server's RDMA port."""
    host = host.replace(":", "\\:")
    return f"{kind}:{host}:{port}" + ("" if kind == "tcp" else _keys(end))


def serverDevice(end: TestedPort) -> str:
    """Return the device string of C{rdma:} servers: those of a host share a software device."""
    return softDeviceListening(end.address) if end.device == _SOFT else end.device


def clientDevice(end: TestedPort, host: str) -> str:
    """Return the device string of C{rdma:} clients for the address of a server."""
    return softDeviceTo(host) if end.device == _SOFT else end.device
