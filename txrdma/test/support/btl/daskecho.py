"""A listener of Dask that prints its address and returns each message to its sender, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from distributed.comm.core import CommClosedError, listen


async def echo(comm: Any) -> None:
    """Return messages until the peer closes."""
    try:
        while True:
            await comm.write(await comm.read())
    except CommClosedError:
        return


async def main(protocol: str) -> None:
    async with listen(f"{protocol}://127.0.0.1", echo) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
