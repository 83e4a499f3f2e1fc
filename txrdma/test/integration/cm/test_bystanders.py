"""An error in the application of one C{rdma:} connection does not affect others on real devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IListeningPort
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections import adapter as adapters
from txrdma.mad.ports import verbsport
from txrdma.test.support.processes import loopbackAddress
from txrdma.testing.messagebystanders import MessageBystanderContract
from txrdma.testing.reactors import RealTime


class SharedMemoryTests(MessageBystanderContract, RealTime, SynchronousTestCase):
    """Tests in which both connections share an adapter, and the link between the two processes' devices."""

    slowBecause = "each callback of each end is tested on new connections"

    METHODS = ("compareAndSwap", "fetchAndAdd", "send")

    def setUp(self) -> None:
        self.patch(verbsport, "RECEIVES", 64)  # a thousand receives take a third of a connection's time
        self.createReactor()
        self.addresses = loopbackAddress(), loopbackAddress()

    def device(self, address: str) -> str:
        return rf"device=soft\:{address}"

    def listenWith(self, factory: Any) -> IListeningPort:
        endpoint: Any = serverFromString(self.reactor, f"rdma:0:{self.device(self.addresses[0])}")
        port: IListeningPort = self.successResultOf(endpoint.listen(factory))
        self.number = cast(Any, port.getHost()).port
        return port

    def connectWith(self, factory: Any) -> Deferred[Any]:
        there, here = self.addresses
        text = f"rdma:{there}:{self.number}:{self.device(here)}"
        endpoint: Any = clientFromString(self.reactor, text)
        return cast("Deferred[Any]", endpoint.connect(factory))

    def waitUntil(self, condition: Callable[[], object]) -> None:
        self.runUntil(condition, 30.0)

    def assertClean(self) -> None:
        def openAdapters() -> list[object]:
            return [key for key in adapters._adapters if any(each in str(key[1]) for each in self.addresses)]

        self.waitUntil(lambda: not openAdapters())
