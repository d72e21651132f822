"""Reads one attach stream to its end, whatever that is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from cluster.link import LinkDown, LinkMessage

log = logging.getLogger("headrace.gateway")

DEAD_AFTER_S = 5.0
"""A link silent for this long is given up and attached anew."""


async def read_until_broken(
    stream: AsyncIterator[LinkMessage], hear: Callable[[LinkMessage], None]
) -> LinkDown:
    """Why it ended: it broke, it fell silent, or `hear` found a gap in it."""
    try:
        while True:
            async with asyncio.timeout(DEAD_AFTER_S):
                message = await anext(stream)
            hear(message)
    except TimeoutError:
        return LinkDown(f"silent for {DEAD_AFTER_S} s")
    except StopAsyncIteration:
        return LinkDown("the replica ended the stream")
    except LinkDown as reason:
        return reason
    except Exception as error:  # whatever it is, a link that nobody follows would hang its requests
        log.exception("the stream of a replica failed")
        return LinkDown(f"{type(error).__name__} while reading")
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            with suppress(Exception):  # it is broken already
                await close()
