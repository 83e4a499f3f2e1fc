"""Texts of log entries; rate-limited logging of events that a peer can cause at will."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from twisted.logger import Logger, LogLevel
from twisted.python.reflect import safe_str

MINUTE: Final = 60.0

_MOST: Final = 64
"""Maximum number of subjects that are tracked separately; all others share one entry."""

_OTHERS: Final = object()

_ADVICE: Final = {
    errno.EMFILE: "raise the process's limit (RLIMIT_NOFILE: ulimit -n, LimitNOFILE= of systemd)",
    errno.ENFILE: "raise the system's limit (sysctl fs.file-max)",
}


def lacksDescriptors(error: BaseException | None) -> bool:
    """Return whether an error means that the process or the system has no descriptors left."""
    return isinstance(error, OSError) and error.errno in _ADVICE


def lacksMappings(error: OSError | ValueError) -> bool:
    """
    Return whether memory can't be mapped because this process has no descriptors, or no mappings or address
    space left (ENOMEM): C{vm.max_map_count} limits the first, RLIMIT_AS the second.
    """
    return lacksDescriptors(error) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def errorText(error: BaseException | None) -> str:
    """
    Return the text of an exception, or its type if it has none.

    Log events have texts instead of exceptions, except those of C{Logger.failure}, whose purpose is the
    traceback: Twisted and observers store events, and with a traceback the buffers, devices and descriptors
    of its frames.
    """
    return safe_str(error) or type(error).__name__


def reasonText(error: Exception) -> str:
    """Return the text of an exception; of an C{OSError} without its number, and the path that it repeats."""
    return getattr(error, "strerror", None) or errorText(error)


def advised(error: Exception) -> str:
    """Return the text of an error, with advice if the process or the system has no descriptors left."""
    advice = _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"{errorText(error)}: {advice}" if advice else errorText(error)


def signalName(number: int) -> str:
    """Return the name of a signal, or its number: most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RateLimitedLogger:
    """
    Logs events that a peer can cause repeatedly.

    The first entry about a subject is written immediately, later ones once a minute, with the number of
    suppressed entries. A subject identifies the cause, such as a user, an address or a reason.
    """

    def __init__(
        self, log: Logger, seconds: float = MINUTE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[Hashable, tuple[float, int]] = {}  # time of the last entry, suppressed since

    def info(self, subject: Hashable, text: str, **fields: Any) -> None:
        self.emit(LogLevel.info, subject, text, **fields)

    def warn(self, subject: Hashable, text: str, **fields: Any) -> None:
        self.emit(LogLevel.warn, subject, text, **fields)

    def emit(self, level: Any, subject: Hashable, text: str, **fields: Any) -> None:
        """Write an entry, unless one about this subject was written within the last C{seconds}."""
        now = self._clock()
        if subject not in self._entries and len(self._entries) >= _MOST:
            self._forget(now)
            if len(self._entries) >= _MOST:
                subject = _OTHERS
        written, leftOut = self._entries.get(subject, (None, 0))
        if written is not None and now - written < self._seconds:
            self._entries[subject] = written, leftOut + 1
            return
        self._entries[subject] = now, 0
        if leftOut:
            text += " ({leftOut} more like this were not logged)"
        self._log.emit(level, text, leftOut=leftOut, **fields)

    def _forget(self, now: float) -> None:
        """Remove subjects without recent entries; their suppressed entries are added to the shared one."""
        written, total = self._entries.pop(_OTHERS, (now - self._seconds, 0))
        for subject, (when, leftOut) in list(self._entries.items()):
            if now - when >= self._seconds:
                del self._entries[subject]
                total += leftOut
        self._entries[_OTHERS] = written, total
