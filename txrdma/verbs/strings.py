"""
The device strings C{pyverbs:NAME}: RDMA devices of this host's kernel.

Twisted loads this module whenever it looks for device plugins, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from zope.interface import implementer

from twisted.plugin import IPlugin

from txrdma.interfaces import IVerbsDevice, IVerbsDeviceStringParser
from txrdma.kit.strings import Arguments

DEVICES = "/sys/class/infiniband"
"""The directory in which the kernel lists its RDMA devices."""


@implementer(IPlugin, IVerbsDeviceStringParser)
class PyverbsDeviceStringParser:
    """C{pyverbs:NAME}, where C{NAME} is the device's name in C{ibv_devices} and C{rdma link}."""

    prefix = "pyverbs"

    def parseDevice(self, reactor: object, *args: str, **kwargs: str) -> IVerbsDevice:
        from txrdma.verbs.pyverbs.device import openPyverbsDevice

        keys = Arguments("pyverbs", ("name",), args, kwargs)
        name = keys.take("name")
        keys.end()
        if not name:
            raise ValueError("pyverbs: name a device, as pyverbs:NAME; ibv_devices lists them")
        if "/" in name:
            raise ValueError(f"pyverbs: {name!r} is not a device name")
        return openPyverbsDevice(reactor, name)

    def available(self) -> Sequence[str]:
        try:
            if find_spec("pyverbs") is None:
                return []
            return [f"pyverbs:{name}" for name in sorted(os.listdir(DEVICES))]
        except (OSError, ImportError, ValueError):
            return []
