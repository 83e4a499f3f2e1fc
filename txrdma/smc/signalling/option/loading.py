"""
The program with its maps, in the kernel and attached to a cgroup.
"""

from __future__ import annotations

from pathlib import Path

from txrdma.smc.signalling.option import bpf
from txrdma.smc.signalling.option._program import assembleProgram, COUNTERS, PORTS, STORAGE_BYTES

_NUMBER_BYTES = 8


class Loaded:
    """
    The program, attached. When all of it is closed and nothing of it pinned, it is gone.

    @ivar sockets: the marks of sockets, by descriptor.
    @ivar listeners: how many marked sockets listen, by port; 8 bytes each.
    @ivar counters: how often it did what.
    @ivar link: what keeps the program at work.
    """

    def __init__(
        self, sockets: bpf.BPFMap, listeners: bpf.BPFMap, counters: bpf.BPFMap, link: bpf.Link
    ) -> None:
        self.sockets = sockets
        self.listeners = listeners
        self.counters = counters
        self.link = link

    def close(self) -> None:
        """Let go of all of it. Twice is fine."""
        for handle in (self.link, self.counters, self.listeners, self.sockets):
            handle.close()


def load(cgroup: Path) -> Loaded:
    """
    Load the program, and attach it to a cgroup: sockets opened in it, or below, can be marked from now on.

    @param cgroup: a directory of cgroup version 2.
    @raise OptionUnavailable: it can't be done, and why.
    """
    opened: list[bpf.Handle] = []
    try:
        types = bpf.BTF.load()
        opened.append(types)
        flags = bpf.NO_PREALLOCATION | bpf.CLONE
        sockets = bpf.BPFMap.create("smc_sockets", bpf.SOCKET_STORAGE, STORAGE_BYTES, 0, flags, types)
        opened.append(sockets)
        listeners = bpf.BPFMap.create("smc_listeners", bpf.ARRAY, _NUMBER_BYTES, PORTS)
        opened.append(listeners)
        counters = bpf.BPFMap.create("smc_counters", bpf.ARRAY, _NUMBER_BYTES * len(COUNTERS), 1)
        opened.append(counters)
        code = assembleProgram(sockets.fileno(), listeners.fileno(), counters.fileno())
        program = bpf.Program.load("smc_option", code)
        opened.append(program)
        link = bpf.Link.create(program, cgroup)
    except BaseException:
        for handle in opened:
            handle.close()
        raise
    for handle in (types, program):
        handle.close()  # the link has the program, and the map its types
    return Loaded(sockets, listeners, counters, link)
