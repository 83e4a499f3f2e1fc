"""
The endpoint strings C{smc:...}: what stands in them, made into endpoints.

Twisted loads this module whenever it looks for endpoint plugins, so it imports next to nothing; what it
names is imported when a string is parsed.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import (
    IStreamClientEndpoint,
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin

if TYPE_CHECKING:
    from txrdma.smc.terms.options import Options


def _number(key: str, value: str, highest: int) -> int:
    """A whole number from 0 up."""
    if value.isascii() and value.isdigit() and int(value) <= highest:
        return int(value)
    raise ValueError(f"smc: {key}={value} is not a number from 0 to {highest}")


def _seconds(key: str, value: str) -> float:
    """A time span that is neither nothing nor for ever."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if 0 < seconds < float("inf"):
        return seconds
    raise ValueError(f"smc: {key}={value} is not a number of seconds above 0")


def _address(key: str, value: str) -> str:
    """Check that the value of an option is an IP address, and return it; a C{ValueError} if not."""
    try:
        ipaddress.ip_address(value.partition("%")[0])
    except ValueError:
        raise ValueError(f"smc: {key}={value} is no IP address") from None
    return value


_UNITS = {"K": 10, "M": 20, "G": 30}


def _bytes(key: str, value: str, lowest: int, highest: int) -> int:
    """A number of bytes, with C{K}, C{M} or C{G} behind it or not."""
    digits, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS else (value, "")
    if digits.isascii() and digits.isdigit():
        count = int(digits) << _UNITS.get(unit, 0)
        if lowest <= count <= highest:
            return count
    raise ValueError(
        f"smc: {key}={value} is not a number of bytes from {lowest} to {highest}, as 65536 or 64K"
    )


def _choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if value in choices:
        return value
    raise ValueError(f"smc: {key}={value} is none of {', '.join(choices)}")


def _versions(version: str) -> tuple[int, ...]:
    """The versions of SMC-R that may be spoken."""
    choices = {"auto": (1, 2), "1": (1,), "2": (2,)}
    return choices[_choice("version", version, tuple(choices))]


def _ueids(version: str, ueid: str | None) -> tuple[str, ...]:
    """The UEIDs of an end, which stand one behind the other."""
    from txrdma.smc.terms.offer import MOST_UEIDS
    from txrdma.smc.wire.clc import enterpriseID

    if ueid is None:
        if version == "2":
            raise ValueError("smc: version=2 needs ueid=, the name of an enterprise that both ends belong to")
        return ()
    if version == "1":
        raise ValueError(
            f"smc: ueid={ueid} is for version 2, and version=1 says that this is not to be spoken"
        )
    names = tuple(ueid.split(","))
    if len(names) > MOST_UEIDS:
        raise ValueError(f"smc: ueid={ueid} are {len(names)}, and {MOST_UEIDS} are the most")
    for name in names:
        try:
            enterpriseID(name)
        except ValueError as error:
            raise ValueError(f"smc: ueid={ueid}: {error}") from None
    return names


def _links(links: str | None) -> int | None:
    """The most links of a link group; None leaves that to the device's ports."""
    from txrdma.smc.terms.offer import FEWEST_LINKS, MOST_LINKS

    if links is None:
        return None
    if links.isascii() and links.isdigit() and FEWEST_LINKS <= int(links) <= MOST_LINKS:
        return int(links)
    raise ValueError(f"smc: links={links} is not a number from {FEWEST_LINKS} to {MOST_LINKS}")


def _options(kwargs: dict[str, str], bindAddress: str | None = None) -> Options:
    """Options from the keys of either side, which are taken, and the address that a client comes from."""
    from txrdma.smc.terms.options import GROUPS, HANDSHAKES, LARGEST_RING, MEMORY, Options

    device, peer, version = (_take(kwargs, key, "auto") for key in ("device", "peer", "version"))
    backend, fallback = _take(kwargs, "backend", "auto"), _take(kwargs, "fallback", "yes")
    timeout, ueid, links = (kwargs.pop(key, None) for key in ("timeout", "ueid", "links"))
    if not device:
        raise ValueError("smc: device= is empty; device=auto is the default")
    if _choice("backend", backend, ("auto", "own", "kernel")) == "kernel":
        own = {key: (kwargs.get(key), None) for key in ("option", "runtime", *_OWN)}
        _unlessKernels(
            device=(device, "auto"),
            peer=(peer, "auto"),
            version=(version, "auto"),
            ueid=(ueid, None),
            links=(links, None),
            **own,
        )
    runtime = kwargs.pop("runtime", None)
    if runtime and not runtime.startswith("/"):
        raise ValueError(f"smc: runtime={runtime} is not the path of a directory, from the root")
    sndbuf, rcvbuf = kwargs.pop("sndbuf", "64K"), kwargs.pop("rcvbuf", None)
    keepalive, handshakes = kwargs.pop("keepalive", None), kwargs.pop("handshakes", str(HANDSHAKES))
    maxgroups, maxmemory = kwargs.pop("maxgroups", str(GROUPS)), kwargs.pop("maxmemory", str(MEMORY))
    return Options(
        device=device,
        agreed=_choice("peer", peer, ("auto", "smc")) == "smc",
        timeout=None if timeout is None else _seconds("timeout", timeout),
        fallback=_choice("fallback", fallback, ("yes", "no")) == "yes",
        bindAddress=None if bindAddress is None else _address("bindAddress", bindAddress),
        backend=backend,
        versions=_versions(version),
        ueids=_ueids(version, ueid),
        links=_links(links),
        option=_choice("option", _take(kwargs, "option", "auto"), ("auto", "no")) == "auto",
        runtime=runtime,
        autocork=_choice("autocork", _take(kwargs, "autocork", "yes"), ("yes", "no")) == "yes",
        sndbuf=_bytes("sndbuf", sndbuf, 1, 1 << 40),
        rcvbuf=None if rcvbuf is None else _bytes("rcvbuf", rcvbuf, 1, LARGEST_RING),
        keepalive=None if keepalive is None else _seconds("keepalive", keepalive),
        handshakes=_number("handshakes", handshakes, 1 << 31),
        maxgroups=_number("maxgroups", maxgroups, 1 << 31),
        maxmemory=_bytes("maxmemory", maxmemory, 0, 1 << 50),
    )


_OWN = ("autocork", "sndbuf", "rcvbuf", "keepalive", "handshakes", "maxgroups", "maxmemory")
"""The keys about what Linux's own stack has sysctls and socket options for."""


def _unlessKernels(**keys: tuple[str | None, str | None]) -> None:
    """Complain about what the kernel decides by itself; each key comes with its value and its default."""
    for key, (value, default) in keys.items():
        if value != default:
            raise ValueError(f"smc: {key}={value} has no meaning with backend=kernel: it decides that")


def _unknown(kwargs: dict[str, str]) -> None:
    """Complain about what nobody took."""
    for key, value in kwargs.items():
        raise ValueError(f"smc: {key}={value}: there is no such key")


def _positional(names: tuple[str, ...], args: tuple[str, ...], kwargs: dict[str, str]) -> None:
    """Sort positional values into the keywords."""
    if len(args) > len(names):
        raise ValueError(f"smc: {args[len(names)]} is one value too many")
    for name, value in zip(names, args, strict=False):
        if name in kwargs:
            raise ValueError(f"smc: {name}={kwargs[name]}: {name} is {value} already")
        kwargs[name] = value


def _take(kwargs: dict[str, str], key: str, default: str) -> str:
    return kwargs.pop(key, default)


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor)
class SMCClientParser:
    """
    C{smc:host:port}, with C{device}, C{backend}, C{peer}, C{timeout}, C{fallback}, C{version}, C{ueid},
    C{links}, C{option}, C{runtime}, C{bindAddress}, and the keys of L{_OWN} but C{handshakes}.
    """

    prefix = "smc"

    def parseStreamClient(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: object, *args: str, **kwargs: str
    ) -> IStreamClientEndpoint:
        from txrdma.smc.endpoints import SMCClientEndpoint
        from txrdma.smc.preparing import prepareClient

        _positional(("host", "port"), args, kwargs)
        for key in ("host", "port"):
            if not kwargs.get(key):
                raise ValueError(f"smc: {key} is missing: smc:host:port")
        host = kwargs.pop("host")
        port = _number("port", kwargs.pop("port"), 65535)
        bindAddress = kwargs.pop("bindAddress", None)
        if "handshakes" in kwargs:
            raise ValueError(f"smc: handshakes={kwargs['handshakes']} is for listeners")
        options = _options(kwargs, bindAddress)
        _unknown(kwargs)
        prepareClient(options)
        return SMCClientEndpoint(reactor, host, port, options)


@implementer(IPlugin, IStreamServerEndpointStringParser)
class SMCServerParser:
    """
    C{smc:port}, C{smc:address:port} or C{smc:port:interface=address}, with C{device}, C{backend}, C{peer},
    C{timeout} (of a handshake), C{backlog}, C{fallback}, C{version}, C{ueid}, C{links}, C{option},
    C{runtime}, and the keys of L{_OWN}.
    """

    prefix = "smc"

    def parseStreamServer(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: object, *args: str, **kwargs: str
    ) -> IStreamServerEndpoint:
        from txrdma.smc.endpoints import SMCServerEndpoint
        from txrdma.smc.preparing import prepare

        _positional(("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        if not kwargs.get("port"):
            raise ValueError("smc: port is missing: smc:port, or smc:address:port")
        port = _number("port", kwargs.pop("port"), 65535)
        interface = _take(kwargs, "interface", "")
        backlog = _number("backlog", _take(kwargs, "backlog", "50"), 2**31 - 1)
        timeout = kwargs.get("timeout")
        options = _options(kwargs)
        if options.backend == "kernel":
            _unlessKernels(timeout=(timeout, None))
        _unknown(kwargs)
        prepare(options)
        return SMCServerEndpoint(reactor, port, interface, backlog, options)
