"""
The private names of Twisted that txrdma uses, and a check that the installed Twisted has them.

Twisted may change a private name in any release. L{NAMES} is the only list of them; the documentation prints
it. Modules that cannot work without a name call L{require} when they are imported; the others fall back.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import FunctionType
from typing import Any, Final, NamedTuple


class PrivateName(NamedTuple):
    """
    A private attribute or module of Twisted.

    @ivar owner: the module, or the module and class, that has the name.
    @ivar modules: the modules of txrdma that use it.
    @ivar purpose: why no public name serves.
    @ivar fallback: what happens if Twisted no longer has it; empty if C{modules} cannot work without it.
    """

    owner: str
    name: str
    modules: tuple[str, ...]
    purpose: str
    fallback: str = ""


_REACTOR: Final = "twisted.internet.posixbase.PosixReactorBase"
_CONNECTION: Final = "twisted.internet.tcp.Connection"
_CLIENT: Final = "twisted.internet.tcp.Client"
_SERVICE: Final = "twisted.application.internet.StreamServerEndpointService"
_HANDSHAKE: Final = "txrdma.smc.handshake"
_KERNEL: Final = "txrdma.smc.kernel.transports"
_DIALING: Final = "txrdma.smc.signalling.dialing"

# fmt: off
NAMES: Final = (
    PrivateName(_REACTOR, "_internalReaders", ("txrdma.smc.status.control", "txrdma.unix.answers"),
        "Status sockets must not make a trial suite unclean.",
        "There are no status sockets: txrdma connections does not list the process."),
    PrivateName(_CONNECTION, "_tempDataLen",
        (f"{_HANDSHAKE}.negotiation", "txrdma.smc.stream.tcpcounts", "txrdma.smc.stream.tcpmonitor"),
        "Whether written bytes wait, to write or close in this reactor iteration, and how many do.",
        "They are taken as waiting, which costs some system calls per connection; CLC messages are counted."),
    PrivateName(_CONNECTION, "_dataReceived", (f"{_HANDSHAKE}.plaintcp", _KERNEL),
        "Removes late CLC messages below TLS; detects resets of kernel sockets."),
    PrivateName(_CONNECTION, "_closeSocket", (f"{_HANDSHAKE}.plaintcp", _KERNEL),
        "Closes by a reset with ConnectionLost; closes kernel sockets in a thread while they send."),
    PrivateName(_CONNECTION, "_postLoseConnection", (_KERNEL,), "Delays the close while the kernel sends."),
    PrivateName(_CONNECTION, "_closeWriteConnection", (_KERNEL,), "Delays the half-close while it sends."),
    PrivateName(_CONNECTION, "_writeDisconnected", (_KERNEL,), "Allows another attempt to half-close."),
    PrivateName(_CONNECTION, "_writeDisconnected", ("txrdma.smc.stream.tcpcounts",),
        "Whether a FIN is among the bytes that the kernel counts.", "It is counted."),
    PrivateName(_CLIENT, "_connectDone", (_KERNEL, _DIALING), "The TCP connection of a client is made."),
    PrivateName(_CLIENT, "_requiresResolution", (_DIALING,), "Whether the host is a name."),
    PrivateName(_CLIENT, "_setRealAddress", (_DIALING,), "Connects without a Deferred for the address."),
    PrivateName(_CLIENT, "_stopReadingAndWriting", (_DIALING,), "Replaces the socket of an attempt."),
    PrivateName("twisted.internet.tcp.Connector", "_makeTransport", (_KERNEL, _DIALING),
        "Connects with a subclass of Twisted's client."),
    PrivateName("twisted.internet._newtls", "startTLS", ("txrdma.streams.transport",),
        "startTLS on a stream of txrdma.", "startTLS raises ImportError. The tls: wrapper does not need it."),
    PrivateName(_REACTOR, "_newTimedCalls", ("txrdma.verbs.polling",), "The reactor has work: end a spin."),
    PrivateName(_REACTOR, "_newTimedCalls", ("txrdma.kit.delayedcalls", "txrdma.verbs.completions"),
        "Whether handlers have delayed calls, which must be made before they are called again.",
        "The reactor is asked for its timeout after each batch of completions."),
    PrivateName(_REACTOR, "_justStopped", ("txrdma.verbs.polling",), "The reactor stops: end a spin."),
    PrivateName(_SERVICE, "_raiseSynchronously", ("txrdma.tap.listening",),
        "twistd exits if the port is in use, as with strports.service.",
        "The error is logged, and twistd continues."),
    PrivateName(_SERVICE, "_waitingForPort", ("txrdma.tap.monitor",),
        "Reports the port that the system has chosen.", "It is not reported."),
    PrivateName("twisted.internet.base.ReactorBase", "_eventTriggers", ("txrdma.kit.shutdown",),
        "Connections close after all services have stopped.", "They close when services begin to stop."),
    PrivateName("twisted.internet.base", "_ThreePhaseEvent", ("txrdma.kit.twistedprivate",),
        "The class of these triggers, which has the next name.", "The same."),
    PrivateName("twisted.internet.base._ThreePhaseEvent", "_continueFiring", ("txrdma.kit.shutdown",),
        "The same.", "The same."),
    PrivateName("twisted.internet.epollreactor.EPollReactor", "_poller", ("txrdma.monitor.iterations",),
        "The fabric monitor measures how long the reactor is busy between two waits for events.",
        "The metric txrdma_monitor_iteration_seconds is missing."),
    PrivateName("twisted.internet.pollreactor.PollReactor", "_poller", ("txrdma.monitor.iterations",),
        "The same on poll.", "The same."),
    PrivateName("twisted.internet.asyncioreactor.AsyncioSelectorReactor", "_asyncioEventloop",
        ("txrdma.monitor.iterations",), "The same on an event loop of asyncio.", "The same."),
    PrivateName("twisted.internet.asyncioreactor.AsyncioSelectorReactor", "_readOrWrite", ("txrdma.btl.aio",),
        "uvloop calls a reader once after an error, which may be too few for all bytes and the error.",
        "A TCP connection that is reset after data does not end on uvloop."),
    PrivateName("twisted.web.http", "_GenericHTTPChannelProtocol", ("txrdma.kit.twistedprivate",),
        "The class of a web site's connections, which has the next name.", "The same."),
    PrivateName("twisted.web.http._GenericHTTPChannelProtocol", "_channel", ("txrdma.monitor.web.site",),
        "Whether a connection of the fabric monitor is idle, when there are too many; refuses lengths with "
        "thousands of digits.",
        "None counts as idle: further connections are refused. Such a length causes a log entry."),
    PrivateName("twisted.web.server.Request", "_encoder", ("txrdma.monitor.web.site",),
        "Compresses answers of the fabric monitor to users who have logged in.", "They are not compressed."),
    PrivateName("twisted.python.usage.Options", "_dispatch", ("txrdma.commands.common.options",),
        "Errors of a value name its option.", "Errors do not name the option."),
    PrivateName("twisted.internet.task.Clock", "_sortCalls", ("txrdma.sim.clock",),
        "Simulated clocks keep their calls in order themselves.", "Simulations are slower."),
)
# fmt: on
"""All private names of Twisted in use outside of tests."""


class UnsupportedTwisted(ImportError):
    """The installed Twisted lacks private names that a module needs."""


def exists(owner: str, name: str) -> bool:
    """
    Return whether a module has the name, or a class has it, or sets or calls it in one of its methods.

    The tests of the modules, not this function, notice overridden methods that Twisted no longer calls.
    """
    try:
        found: Any = import_module(owner)
    except ImportError as error:
        if not (error.name or "twisted").startswith("twisted"):
            return True  # unknown: the module needs another package, as _newtls does pyOpenSSL
        module, _, attribute = owner.rpartition(".")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError):
            return False
    if hasattr(found, name):
        return True
    functions = (each for base in getattr(found, "__mro__", ()) for each in vars(base).values())
    codes = (each.__code__ for each in functions if isinstance(each, FunctionType))
    return any(name in getattr(code, "co_names", ()) for code in codes)  # built-in code of PyPy has none


def missing(module: str | None = None) -> Iterator[PrivateName]:
    """Yield the names that the installed Twisted lacks, or those of them that one module of txrdma uses."""
    for each in NAMES:
        if module in (None, *each.modules) and not exists(each.owner, each.name):
            yield each


def require(module: str) -> None:
    """
    Check that Twisted has the names without which a module of txrdma cannot work.

    @raise UnsupportedTwisted: if it lacks one.
    """
    lacking = [f"{each.owner}.{each.name}" for each in missing(module) if not each.fallback]
    if lacking:
        from importlib.metadata import version  # takes time to import

        raise UnsupportedTwisted(
            f"Twisted {version('Twisted')} has no {', '.join(lacking)}, which {module} needs: "
            "install an earlier release of Twisted, or a later one of txrdma"
        )
