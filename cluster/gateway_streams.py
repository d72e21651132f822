"""The streams of the gateways that are attached to an engine: one each, fed from its outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from cluster.engine_outbox import EngineOutbox
from cluster.link import HEARTBEAT_S


class GatewayStreams:
    """Owns the outboxes, one a gateway. Lives on the event loop.

    `hello` begins each stream, `heartbeat(gateway_id)` is sent after `HEARTBEAT_S` of silence. `on_attach` is
    called before a stream begins, the first one of a gateway or a new one, `on_break` when a gateway's has
    ended: whatever ran for it before, nobody waits for.
    """

    def __init__(
        self,
        hello: bytes,
        heartbeat: Callable[[str], bytes],
        on_attach: Callable[[str], None],
        on_break: Callable[[str], None],
    ) -> None:
        self._hello = hello
        self._heartbeat = heartbeat
        self._on_attach = on_attach
        self._on_break = on_break
        self._outboxes: dict[str, EngineOutbox] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    def __contains__(self, gateway_id: str) -> bool:
        return gateway_id in self._outboxes

    async def attach(self, gateway_id: str) -> AsyncIterator[bytes]:
        """Hello, then what is put. A gateway has one stream: a new one ends the old one."""
        outbox = EngineOutbox()
        previous = self._outboxes.get(gateway_id)
        self._outboxes[gateway_id] = outbox
        if previous is not None:
            previous.close()
        self._on_attach(gateway_id)
        try:
            yield self._hello
            while True:
                try:
                    message = await outbox.get(HEARTBEAT_S)
                except TimeoutError:
                    message = self._heartbeat(gateway_id)
                if message is None:
                    return
                yield message
        finally:
            self._detach(gateway_id, outbox)

    def put(self, gateway_id: str, message: bytes) -> None:
        """Nothing happens if that gateway has no stream."""
        outbox = self._outboxes.get(gateway_id)
        if outbox is not None:
            outbox.put(message)

    def beat(self) -> None:
        """A heartbeat for every gateway, now."""
        for gateway_id, outbox in self._outboxes.items():
            outbox.put(self._heartbeat(gateway_id))

    def close(self) -> None:
        """Ends every stream once its reader has what was put before."""
        for outbox in self._outboxes.values():
            outbox.close()

    def _detach(self, gateway_id: str, outbox: EngineOutbox) -> None:
        outbox.is_closed = True
        if self._outboxes.get(gateway_id) is outbox:
            del self._outboxes[gateway_id]
            # At once, with no time to come back: a gateway that lives has given these requests up and
            # resumes them elsewhere, and one that was killed must not hold blocks.
            self._on_break(gateway_id)
