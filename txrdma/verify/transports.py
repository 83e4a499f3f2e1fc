"""
Endpoint strings of the verified streams.
"""

from __future__ import annotations

from txrdma.ports.softdevices import softDeviceListening, softDeviceTo
from txrdma.verify.subject import Place

_SOFT = "soft"
"""The device string of the software device that every endpoint uses by default."""


def _keys(place: Place, *more: str) -> str:
    """Return the keys of an endpoint string, with a leading colon."""
    device = place.device.replace("\\", "\\\\").replace(":", "\\:").replace("=", "\\=")
    keys = more if place.device == _SOFT else (f"device={device}", *more)
    return "".join(f":{key}" for key in keys)


def listening(place: Place, address: str) -> dict[str, str]:
    """
    Return the endpoint strings of servers on any free port, by their kind; C{rsocket} needs an IP address.

    @param address: IP address at which TCP connections are accepted.
    """
    found = {
        "tcp": f"tcp:0:interface={address}",
        "smc": f"smc:{address}:0{_keys(place)}",
        "btl": f"btl:{address}:0{_keys(place)}",
    }
    if place.address:
        found["rsocket"] = f"rsocket:{place.address}:0{_keys(place)}"
    return found


def connecting(kind: str, place: Place, host: str, port: object) -> str:
    """
    Return the endpoint string of a client.

    @param host: IP address of the server; of C{rsocket} that of its RDMA port.
    """
    host = host.replace(":", "\\:")
    return f"{kind}:{host}:{port}" + ("" if kind == "tcp" else _keys(place))


def serverDevice(place: Place) -> str:
    """Return the device string of C{rdma:} servers: those of a host share a software device."""
    return softDeviceListening(place.address) if place.device == _SOFT else place.device


def clientDevice(place: Place, host: str) -> str:
    """Return the device string of C{rdma:} clients for the address of a server."""
    return softDeviceTo(host) if place.device == _SOFT else place.device
