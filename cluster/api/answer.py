"""One answer from start to end: read, measured, and aborted if it is left before its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cluster.api.arrival import Arrival
from cluster.api.errors import ApiError
from cluster.api.shapes import DONE, Finish, Shape
from cluster.generation import Generation, GenerationRequest, TextDelta, Usage


class Answer:
    """Owns one generation."""

    def __init__(self, arrival: Arrival, request: GenerationRequest) -> None:
        self._generator = arrival.services.generator
        self._telemetry = arrival.services.telemetry
        self._clock = arrival.services.clock
        self._arrived = arrival.arrived
        self._request = request
        self._last_text: float | None = None
        self.generation: Generation | None = None
        """None until a replica has accepted it."""

    async def whole(self) -> tuple[str, Finish, Usage]:
        """All of the text. Raises `ApiError`."""
        pieces: list[str] = []
        async with aclosing(self._deltas()) as deltas:
            async for text, finish, usage in deltas:
                pieces.append(text)
                if finish is not None:
                    return "".join(pieces), finish, usage
        raise _unfinished()

    async def frames(self, shape: Shape) -> AsyncGenerator[bytes]:
        """Frames of the event stream, none of them empty; `[DONE]` ends a complete one. Raises `ApiError`."""
        opening = shape.opening()
        async with aclosing(self._deltas()) as deltas:
            async for text, finish, usage in deltas:
                frame = opening
                opening = b""
                if text:
                    frame += shape.text(text)
                if finish is not None:
                    frame += shape.finish(finish)
                    if shape.label.include_usage:
                        frame += shape.usage(usage)
                    yield frame + DONE
                    return
                yield frame
        raise _unfinished()

    async def _deltas(self) -> AsyncGenerator[tuple[str, Finish | None, Usage]]:
        """Deltas that say something. Left before the end by whoever reads, it aborts the generation."""
        generation = self.generation = await self._generator.start(self._request)
        is_complete = False
        try:
            async for delta in generation.deltas():
                finish = _finish_of(delta)
                if not delta.text and finish is None:
                    continue
                is_complete = finish is not None
                self._observe_text()
                yield delta.text, finish, generation.usage
                if is_complete:
                    return
        finally:
            if not is_complete:
                await generation.abort()
            self._observe_end(generation, is_complete)

    def _observe_text(self) -> None:
        now = self._clock()
        if self._last_text is None:
            self._telemetry.observe_first_token(self._request.tenant.tenant_id, now - self._arrived)
        else:
            self._telemetry.observe_gap(now - self._last_text)
        self._last_text = now

    def _observe_end(self, generation: Generation, is_complete: bool) -> None:
        tenant_id = self._request.tenant.tenant_id
        self._telemetry.count_usage(tenant_id, generation.usage)
        if is_complete and self._last_text is not None:
            self._telemetry.observe_complete(tenant_id, self._last_text - self._arrived, generation.timing)


def _finish_of(delta: TextDelta) -> Finish | None:
    """OpenAI knows no `abort` and no `error` as a reason: they are errors."""
    if delta.finish_reason == "abort" or delta.finish_reason == "error":
        raise _unfinished()
    return delta.finish_reason


def _unfinished() -> ApiError:
    return ApiError(500, "generation_failed", "The engine could not finish this answer.")
