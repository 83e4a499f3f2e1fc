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

DEVICES = "/sys/class/infiniband"
"""The directory in which the kernel lists its RDMA devices."""


@implementer(IPlugin, IVerbsDeviceStringParser)
class PyverbsDeviceStringParser:
    """C{pyverbs:NAME}, where C{NAME} is the device's name in C{ibv_devices} and C{rdma link}."""

    prefix = "pyverbs"

    def parseDevice(self, reactor: object, *args: str, **kwargs: str) -> IVerbsDevice:
        from txrdma.verbs.pyverbs.device import openPyverbsDevice

        for key, value in kwargs.items():
            if key != "name":
                raise ValueError(f"pyverbs: {key}={value} is unknown; the only key is name")
        names = [*args, *kwargs.values()]
        if not names or not names[0]:
            raise ValueError("pyverbs: name a device, as pyverbs:NAME; ibv_devices lists them")
        if len(names) > 1:
            raise ValueError(f"pyverbs: {names[1]!r} is one name too many after {names[0]!r}")
        if "/" in names[0]:
            raise ValueError(f"pyverbs: {names[0]!r} is not a device name")
        return openPyverbsDevice(reactor, names[0])

    def available(self) -> Sequence[str]:
        try:
            if find_spec("pyverbs") is None:
                return []
            return [f"pyverbs:{name}" for name in sorted(os.listdir(DEVICES))]
        except (OSError, ImportError, ValueError):
            return []
