"""C{twistd fabric-collector}: reads counters for the monitor of a large fabric."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python import usage

from txrdma.error import InvalidRequest, RDMAError
from txrdma.mad.agent import MADAgent
from txrdma.mad.ports import defaultMADPort, openMADPort
from txrdma.monitor.collecting.collector import collectorEndpoint, CollectorFactory
from txrdma.monitor.config import secretIn
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.tap.listening import ListeningService

_log = Logger()

_MOST_OUTSTANDING: Final = 65535
_DIGITS: Final = len(str(_MOST_OUTSTANDING))


def _outstanding(text: str) -> int:
    """Parse the value of C{--outstanding}; raise C{UsageError} for another text."""
    if not (text.isdecimal() and len(text) <= _DIGITS and 1 <= int(text) <= _MOST_OUTSTANDING):
        raise usage.UsageError(f"--outstanding {text}: expected 1 to {_MOST_OUTSTANDING}")
    return int(text)


class Options(usage.Options):
    """The command line of C{twistd fabric-collector}."""

    synopsis = "--listen ENDPOINT --key-file FILE [options]"
    longdesc = (
        "Reads counters and port states of an InfiniBand fabric for the monitors that connect to it "
        "(poll.collectors in their configuration)."
    )
    optParameters = [
        ["listen", "l", None, "Server endpoint string, such as tcp:9316, ssl:9316:... or unix:PATH."],
        ["key-file", "k", None, "File with the key that the monitor has, too: one line."],
        ["port", "p", None, "Management port. [default: the first that can be opened]"],
        [
            *("outstanding", "o", PollerSettings().maxOutstanding),
            *("Most datagrams of a monitor that wait for an answer.", _outstanding),
        ],
    ]

    def postOptions(self) -> None:
        """Read the key, to report errors before the service starts."""
        for name in ("listen", "key-file"):
            if not self[name]:
                raise usage.UsageError(f"--{name} is missing")
        try:
            self["key"] = secretIn(self["key-file"], "--key-file").encode()
        except RDMAError as error:
            raise usage.UsageError(str(error)) from error


class CollectorService(ListeningService):
    """A collector: its management port, and the connections of monitors."""

    command = "fabric-collector"

    def __init__(self, reactor: Any, options: Options) -> None:
        """
        @raise ValueError: the name of the port is invalid.
        @raise RDMAError: the port cannot be opened, or the endpoint string is invalid.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        try:
            endpoint = serverFromString(reactor, options["listen"])
        except Exception as error:  # parsers of endpoint strings raise any exception
            raise InvalidRequest(f"--listen {options['listen']!r}: {error}") from error
        reopen = partial(openMADPort, reactor, options["port"] or defaultMADPort())
        self.agent = MADAgent(reactor, reopen(), reopen=reopen)
        self.factory = CollectorFactory(reactor, self.agent, options["outstanding"])
        proved = collectorEndpoint(reactor, endpoint, options["key"])
        self.listening = self.listen(proved, self.factory)

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        _log.info("reads counters by {port}", port=self.agent.port.name)

    def stopService(self) -> Deferred[None]:
        """Close all connections, and the port."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await MultiService.stopService(self)
        self.factory.close()
        self.agent.close()


def makeService(options: Options) -> IService:
    """Create the service for C{twistd}."""
    from twisted.internet import reactor

    try:
        return CollectorService(reactor, options)
    except (RDMAError, ValueError) as error:
        raise SystemExit(f"fabric-collector: {error}") from error
