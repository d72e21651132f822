"""What a replica made for one running request, as its gateway reads it: in order, once each."""

from __future__ import annotations

import asyncio

import msgspec

from cluster.link import LinkDown
from engine.request import Request, RequestOutput


class TokenInbox:
    """The outputs of one running request, in order, once each.

    Iterating ends after the output that finishes the request; raises `LinkDown` if the link dies first.
    """

    def __init__(self, request: Request, replica_id: str) -> None:
        self.request_id = request.request_id
        self.replica_id = replica_id
        self._next_index = len(request.output_token_ids)
        self._outputs: asyncio.Queue[RequestOutput | LinkDown] = asyncio.Queue()

    def put(self, output: RequestOutput) -> None:
        """Drops indices that are already here. Raises `LinkDown` on a gap."""
        if output.first_output_index > self._next_index:
            raise LinkDown(f"tokens {self._next_index} to {output.first_output_index - 1} were lost")
        seen = self._next_index - output.first_output_index
        if seen and output.token_ids:
            output = msgspec.structs.replace(
                output, first_output_index=self._next_index, token_ids=output.token_ids[seen:]
            )
        self._next_index += len(output.token_ids)
        self._outputs.put_nowait(output)

    def fail(self, reason: LinkDown) -> None:
        self._outputs.put_nowait(reason)

    def discard(self) -> int:
        """Drops what was not read; the number of its tokens."""
        tokens = 0
        while not self._outputs.empty():
            item = self._outputs.get_nowait()
            tokens += 0 if isinstance(item, LinkDown) else len(item.token_ids)
        return tokens

    async def get(self) -> RequestOutput:
        item = await self._outputs.get()
        if isinstance(item, LinkDown):
            raise item
        return item
