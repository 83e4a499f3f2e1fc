"""
Decoders of SMC-R: CLC, LLC and CDC messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import decoder

from txrdma.error import WireError
from txrdma.smc import clc, llc
from txrdma.smc.cdc import CDC
from txrdma.testing.captures import messages, names, SMC_GO, streams


def _clc() -> Iterator[bytes]:
    yield from (SMC_GO["proposal"], SMC_GO["accept"], SMC_GO["decline"])
    for name in names():
        for _, _, content in streams(name):
            try:
                while content:
                    size = clc.needed(content)
                    yield content[:size]
                    content = content[size:]
            except WireError:
                pass  # it was plain TCP, or began to be


def _messages() -> Iterator[bytes]:
    yield SMC_GO["cdc"]
    for name in names():
        for _, message in messages(name):
            yield message


TARGETS = {
    "CLC": decoder(clc.decode, _clc),
    "LLC": decoder(llc.decode, _messages),
    "CDC": decoder(CDC.decode, _messages),
}
