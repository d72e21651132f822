"""A gateway's spool in a process of its own, to be killed: it prints each id whose append has returned.

`python crasher.py FOLDER GATEWAY FIRST`
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

from tenants.spool.spool import Spool
from tests.builders_spool import NOON, a_settlement


async def run(base: Path, gateway_id: str, first: int) -> None:
    spool = Spool.open(base, gateway_id, lambda: NOON)
    numbers = count(first)

    async def settle_on() -> None:
        for number in numbers:
            await spool.append(a_settlement(number, gateway_id=gateway_id))
            os.write(1, f"r{number}\n".encode())

    await asyncio.gather(*(settle_on() for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
