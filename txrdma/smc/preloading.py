"""
Imports the modules that connections need, before the first connection.

When the first connection is made, the process may have another root directory (C{twistd --chroot}), run as a
user who may not read the modules (C{twistd --uid}), or have no descriptors left.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

from txrdma.kit.strings import splitString
from txrdma.smc.terms.options import LOCAL_DEVICE, Options
from txrdma.verbs.devices import prepareDevice

_ALWAYS: Final = ("encodings.idna", "txrdma.smc.userspace", "txrdma.smc.connecting")
_ELSEWHERE: Final = ("txrdma.smc.signalling.tcpoption", "txrdma.smc.signalling.option.carrier")


def preload(options: Options) -> None:
    """Import the modules that connections need, except those for real devices with C{device=auto}."""
    if options.backend == "kernel":
        import_module("txrdma.smc.kernel.transports")
        return
    for name in _ALWAYS:
        import_module(name)
    if options.agreed:
        import_module("txrdma.smc.signalling.configured")
    if options.meetingDirectory:
        import_module("txrdma.smc.signalling.netns")
    if options.device == "auto":
        prepareDevice(LOCAL_DEVICE)
        return
    for name in _ELSEWHERE:
        import_module(name)
    for each in splitString(options.device, "+"):
        prepareDevice(each)


def preloadClient(options: Options) -> None:
    """Call L{preload} as root, since the process may lose access to modules before its first connection."""
    if not os.geteuid():
        preload(options)
