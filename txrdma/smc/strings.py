"""
Parser of the endpoint strings C{smc:...}.

Twisted loads this module whenever it searches for endpoint plugins, so most imports are deferred until a
string is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import (
    IStreamClientEndpoint,
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin

from txrdma.kit.strings import Arguments

if TYPE_CHECKING:
    from txrdma.smc.terms.options import Options


_VERSIONS = {"auto": (1, 2), "1": (1,), "2": (2,)}
"""Allowed versions of SMC-R, by the value of C{version}."""


def _ueids(version: str, ueid: str | None) -> tuple[str, ...]:
    """Parse a comma-separated list of UEIDs; raises ValueError."""
    from txrdma.smc.terms.offer import MOST_UEIDS
    from txrdma.smc.wire.clc import enterpriseID

    if ueid is None:
        if version == "2":
            raise ValueError("smc: version=2 needs ueid=, the name of an enterprise that both ends belong to")
        return ()
    if version == "1":
        raise ValueError(f"smc: ueid={ueid} is for version 2, which version=1 excludes")
    names = tuple(ueid.split(","))
    if len(names) > MOST_UEIDS:
        raise ValueError(f"smc: ueid={ueid}: {len(names)} names; at most {MOST_UEIDS} are allowed")
    for name in names:
        try:
            enterpriseID(name)
        except ValueError as error:
            raise ValueError(f"smc: ueid={ueid}: {error}") from None
    return names


def _checkDevices(description: str) -> None:
    """Check the device strings of a description; raises L{MalformedDevice}."""
    from txrdma.kit.strings import splitString
    from txrdma.verbs.devices import checkDevice

    for each in splitString(description, "+"):
        checkDevice(each)


def _options(keys: Arguments, bindAddress: str | None = None) -> Options:
    """Return the options that the keys of a client's or server's string specify."""
    from txrdma.smc.terms.options import Options, RANGES, USUAL

    given = dict(keys.left)
    device, peer = keys.take("device", "auto"), keys.choice("peer", "auto", "smc")
    version, backend = keys.choice("version", *_VERSIONS), keys.choice("backend", "auto", "own", "kernel")
    if not device:
        raise ValueError("smc: device= is empty; device=auto is the default")
    if device != "auto":
        _checkDevices(device)
    if backend == "kernel":
        _unlessKernels(given, device="auto", peer="auto", version="auto")
        _unlessKernels(given, **dict.fromkeys(("ueid", "links", "option", "runtime", *_OWN)))
    runtime = keys.take("runtime") if keys.has("runtime") else None
    if runtime and not runtime.startswith("/"):
        raise ValueError(f"smc: runtime={runtime} is not an absolute path of a directory")
    return Options(
        device=device,
        agreed=peer == "smc",
        timeout=keys.seconds("timeout", None),
        fallback=keys.isYes("fallback", True),
        bindAddress=bindAddress,
        backend=backend,
        versions=_VERSIONS[version],
        ueids=_ueids(version, keys.take("ueid") if keys.has("ueid") else None),
        links=keys.number("links", 0, *RANGES["links"]) if keys.has("links") else None,
        option=keys.choice("option", "auto", "no") == "auto",
        runtime=runtime,
        autocork=keys.isYes("autocork", True),
        lowLatency=keys.choice("latency", "auto", "low") == "low",
        sndbuf=keys.size("sndbuf", USUAL.sndbuf, *RANGES["sndbuf"]),
        rcvbuf=keys.size("rcvbuf", 0, *RANGES["rcvbuf"]) if keys.has("rcvbuf") else None,
        keepalive=keys.seconds("keepalive", None),
        handshakes=keys.number("handshakes", USUAL.handshakes, *RANGES["handshakes"]),
        maxgroups=keys.number("maxgroups", USUAL.maxgroups, *RANGES["maxgroups"]),
        maxmemory=keys.size("maxmemory", USUAL.maxmemory, *RANGES["maxmemory"]),
    )


_OWN = ("autocork", "latency", "sndbuf", "rcvbuf", "keepalive", "handshakes", "maxgroups", "maxmemory")
"""Keys for which Linux's SMC stack has sysctls and socket options instead."""


def _unlessKernels(given: dict[str, str], **defaults: str | None) -> None:
    """Reject keys whose settings the kernel decides, unless they have their default values."""
    for key, default in defaults.items():
        if given.get(key, default) != default:
            raise ValueError(
                f"smc: {key}={given[key]} has no effect with backend=kernel: the kernel decides it"
            )


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor)
class SMCClientParser:
    """
    Parses C{smc:host:port}, with C{device}, C{backend}, C{peer}, C{timeout}, C{fallback}, C{version},
    C{ueid}, C{links}, C{option}, C{runtime}, C{bindAddress}, and the keys of L{_OWN} except C{handshakes}.
    """

    prefix = "smc"

    def parseStreamClient(  # type: ignore[override]  # the arguments come from a string
        self, reactor: object, *args: str, **kwargs: str
    ) -> IStreamClientEndpoint:
        from txrdma.smc.endpoints import SMCClientEndpoint
        from txrdma.smc.preloading import preloadClient

        keys = Arguments("smc", ("host", "port"), args, kwargs)
        host, port = keys.required("host"), keys.number("port", None, 0, 65535)
        bindAddress = keys.address("bindAddress") if "bindAddress" in kwargs else None
        if "handshakes" in kwargs:
            raise ValueError(f"smc: handshakes={kwargs['handshakes']} is for listeners")
        options = _options(keys, bindAddress)
        keys.end()
        preloadClient(options)
        return SMCClientEndpoint(reactor, host, port, options)


@implementer(IPlugin, IStreamServerEndpointStringParser)
class SMCServerParser:
    """
    Parses C{smc:port}, C{smc:address:port} or C{smc:port:interface=address}, with C{device}, C{backend},
    C{peer}, C{timeout} (of a handshake), C{backlog}, C{fallback}, C{version}, C{ueid}, C{links}, C{option},
    C{runtime}, and the keys of L{_OWN}.
    """

    prefix = "smc"

    def parseStreamServer(  # type: ignore[override]  # the arguments come from a string
        self, reactor: object, *args: str, **kwargs: str
    ) -> IStreamServerEndpoint:
        from txrdma.smc.endpoints import SMCServerEndpoint
        from txrdma.smc.preloading import preload

        keys = Arguments("smc", ("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        port, interface = keys.number("port", None, 0, 65535), keys.take("interface")
        backlog = keys.number("backlog", 50, 0, 2**31 - 1)
        options = _options(keys)
        if options.backend == "kernel":
            _unlessKernels(kwargs, timeout=None)
        keys.end()
        preload(options)
        return SMCServerEndpoint(reactor, port, interface, backlog, options)
