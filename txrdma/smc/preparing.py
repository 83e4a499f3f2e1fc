"""
Imports what connections of a server need before there is one.

When the first connection comes, the process may have another root directory (C{twistd --chroot}), belong to a
user who may not read the modules (C{twistd --uid}), or have no descriptor left.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from txrdma.smc.options import LOCAL_DEVICE, Options
from txrdma.verbs.devices import prepareDevice

_ALWAYS: Final = ("encodings.idna", "txrdma.smc.own", "txrdma.wirecode")
_ELSEWHERE: Final = ("txrdma.smc.carriers.marked", "txrdma.smc.carriers.option.carrier")


def prepare(options: Options) -> None:
    """
    Import what a listener with these options needs; no device is opened.

    Modules for real devices are left out where C{device=auto} might choose one: that is looked up when a
    connection comes.
    """
    if options.backend == "kernel":
        import_module("txrdma.smc.kernel.backend")
        return
    for name in _ALWAYS:
        import_module(name)
    if options.agreed:
        import_module("txrdma.smc.carriers.agreed")
    if options.meetingDirectory:
        import_module("txrdma.smc.carriers.seeking")
    if options.device == "auto":
        prepareDevice(LOCAL_DEVICE)
        return
    for name in _ELSEWHERE:
        import_module(name)
    prepareDevice(options.device)
