"""
Python objects as messages, by pickle with out-of-band buffers (PEP 574): large arrays are not pickled.

A message consists of the number of its parts, the length of each, the pickle, and the buffers. Unpickling
runs code that the sender chooses, so call L{loads} only with messages of peers that are trusted.
"""

from __future__ import annotations

import pickle
from itertools import accumulate
from struct import pack, Struct
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer

_COUNT: Final = Struct(">I")
_LENGTH: Final = Struct(">Q")


def dumps(value: object) -> bytes:
    """
    Return a message with an object.

    @param value: anything that can be pickled.
    @raise pickle.PicklingError: a buffer is not contiguous. NumPy copies such arrays before.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts: list[Buffer] = [head, *(each.raw() for each in buffers)]
    lengths = pack(f">{len(parts)}Q", *map(len, parts))
    return b"".join((_COUNT.pack(len(parts)), lengths, *parts))


def loads(message: bytes) -> Any:
    """
    Return the object of a message of L{dumps}. Its arrays can be changed, unless the sender's were read-only.

    @param message: from a peer that is trusted, because it decides what is called.
    @raise InvalidRequest: this is not such a message. Unpickling can raise any exception.
    """
    (count,) = _COUNT.unpack_from(message) if len(message) >= _COUNT.size else (0,)
    begin = _COUNT.size + count * _LENGTH.size
    if not count or begin > len(message):
        raise InvalidRequest("a message contains no object")
    lengths = [length for (length,) in _LENGTH.iter_unpack(message[_COUNT.size : begin])]
    ends = list(accumulate(lengths, initial=begin))
    if ends[-1] != len(message):
        raise InvalidRequest(f"a message with an object has {len(message)} bytes, not {ends[-1]}")
    view = memoryview(message)
    buffers = [bytearray(view[here:there]) for here, there in zip(ends[1:], ends[2:], strict=False)]
    return pickle.loads(view[ends[0] : ends[1]], buffers=buffers)
