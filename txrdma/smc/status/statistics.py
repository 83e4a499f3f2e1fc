"""
Statistics of this process's connections, as C{smcr stats} shows those of the kernel.

They are nested dictionaries of numbers, which can be added and subtracted: see
L{txrdma.commands.common.counted}.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast, Final

from txrdma.smc.common import counting
from txrdma.smc.group.groups import everyGroup
from txrdma.smc.stream.connectionstatus import SMCStatus, statuses

BOUNDS: Final = tuple(counting.SMALL << doubled for doubled in range(8))
"""The upper bounds of size classes, as in C{smcr stats}: 8 KiB, 16 KiB, and so on, to 1 MiB."""


def _classes(large: list[int], total: int) -> dict[str, int]:
    """Convert counts by bit length of (size - 1) to counts by L{BOUNDS}; the rest of C{total} is small."""
    found = dict.fromkeys((*map(str, BOUNDS), "more"), 0)
    for bits, count in enumerate(large):
        if count:
            found[next((str(bound) for bound in BOUNDS if 1 << bits <= bound), "more")] += count
    found[str(counting.SMALL)] = max(total - sum(large), 0)
    return found


def _nested(counted: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (outer, inner), count in counted.items():
        found.setdefault(outer, {})[inner] = count
    return found


def statistics() -> dict[str, Any]:
    """
    Return the statistics of this process: C{counters}, which only increase, and C{gauges}.

    C{writes} and C{reads} are smcr's requests: single writes to a peer's ring, and single deliveries to an
    application. Their sizes are counted in classes by upper bounds.
    """
    alive = statuses()
    streams = [each for each in alive if isinstance(each, SMCStatus)]
    summed = Counter(counting.ended)
    for stream in streams:
        stream.addTo(summed)
    seconds = counting.blockedSeconds[0] + sum(stream.blockedSeconds for stream in streams)
    current = Counter(dict.fromkeys(counting.connections, 0))  # show 0 after the last has ended
    current.update((each.kind, each.role) for each in cast("list[Any]", alive))
    groups = everyGroup()
    sizes: Counter[int] = Counter()
    used: Counter[int] = Counter()
    for group in groups:
        for buffer in group.pool:
            sizes[buffer.size] += buffer.count
            used[buffer.size] += buffer.used
    return {
        "counters": {
            "connections": _nested(counting.connections),
            "fallbacks": _nested(counting.fallbacks),
            "refused": dict(counting.refused),
            "sent": {
                "bytes": summed["bytesSent"],
                "writes": summed["flushes"],
                "rdmaWrites": summed["writes"],
                "messages": summed["messagesSent"],
                "blocks": summed["blocks"],
                "blockedSeconds": round(seconds, 6),
                "sizes": _classes(counting.written, summed["flushes"]),
            },
            "received": {
                "bytes": summed["bytesReceived"],
                "reads": summed["reads"],
                "messages": summed["messagesReceived"],
                "sizes": _classes(counting.read, summed["reads"]),
            },
        },
        "gauges": {
            "connections": _nested(current),
            "linkGroups": len(groups),
            "links": sum(len(group.links) for group in groups),
            "rings": {str(size): count for size, count in sorted(sizes.items())},
            "ringsUsed": {str(size): used[size] for size in sorted(sizes)},
            "ringBytes": sum(size * count for size, count in sizes.items()),
            "ringBytesUsed": sum(size * count for size, count in used.items()),
            "ringBytesUnread": sum(stream.unread for stream in streams),
        },
    }
