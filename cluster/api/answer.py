"""One answer from start to end: read, measured, and aborted if it is left before its end."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from cluster.api.errors import ApiError
from cluster.api.request_context import RequestContext
from cluster.api.shapes import DONE, Choice, Finish, Shape
from cluster.generation import Generation, GenerationRequest, TextDelta, ToldToken, Usage
from tenants.ledger.settlement import Outcome


class Answer:
    """Owns one generation. With `n` siblings, each ends on its own; the last end is the answer's."""

    def __init__(self, context: RequestContext, request: GenerationRequest) -> None:
        self._context = context
        self._generator = context.services.generator
        self._telemetry = context.services.telemetry
        self._clock = context.services.clock
        self._arrived = context.arrived
        self._request = request
        self._tenant_id = request.account.tenant.tenant_id
        self._last_text: dict[int, float] = {}
        """When each sibling last said something."""
        self.generation: Generation | None = None
        """None until a replica has accepted it."""

    async def whole(self, shape: Shape) -> AsyncGenerator[bytes]:
        """One piece: the body with all of every sibling's text, in their order. Raises `ApiError`."""
        parts = [_Parts() for _ in range(self._request.n)]
        async with aclosing(self._deltas()) as deltas:
            async for delta, finish in deltas:
                parts[delta.sibling].add(delta, finish)
        yield shape.whole([part.choice() for part in parts], self._usage)

    async def frames(self, shape: Shape) -> AsyncGenerator[bytes]:
        """Frames of the event stream, none of them empty; `[DONE]` ends a complete one. Raises `ApiError`."""
        opened: set[int] = set()
        async with aclosing(self._deltas()) as deltas:
            async for delta, finish in deltas:
                frame = b"" if delta.sibling in opened else shape.opening(delta.sibling)
                opened.add(delta.sibling)
                if delta.text or delta.tokens:
                    frame += shape.text(delta.sibling, delta.text, delta.tokens)
                if finish is not None:
                    frame += shape.finish(delta.sibling, finish)
                yield frame
        yield (shape.usage(self._usage) if shape.label.include_usage else b"") + DONE

    @property
    def _usage(self) -> Usage:
        assert self.generation is not None
        return self.generation.usage

    async def _deltas(self) -> AsyncGenerator[tuple[TextDelta, Finish | None]]:
        """Deltas that say something, to the last sibling's finish. Raises `ApiError` if that never comes.

        Left before the end by whoever reads, it aborts the generation.
        """
        request = replace(self._request, account=await self._context.account_now())
        generation = self.generation = await self._generator.start(request)
        num_running = request.n
        outcome: Outcome = "failed"
        try:
            async for delta in generation.deltas():
                finish = _finish_of(delta)
                if not delta.text and not delta.tokens and finish is None:
                    continue
                num_running -= finish is not None
                if not num_running:
                    outcome = "finished"
                self._observe_text(delta.sibling)
                yield delta, finish
                if not num_running:
                    return
            raise _unfinished()
        except (CancelledError, GeneratorExit):
            if num_running:
                outcome = "left"
            raise
        except ApiError as error:
            if error.status < 500:
                outcome = "left"
            raise
        finally:
            generation.end(outcome)
            self._observe_end(generation, is_complete=outcome == "finished")

    def _observe_text(self, sibling: int) -> None:
        now = self._clock()
        if not self._last_text:
            self._telemetry.observe_first_token(self._tenant_id, now - self._arrived)
        elif sibling in self._last_text:
            self._telemetry.observe_gap(now - self._last_text[sibling])
        self._last_text[sibling] = now

    def _observe_end(self, generation: Generation, is_complete: bool) -> None:
        self._telemetry.count_usage(self._tenant_id, generation.usage)
        if is_complete:
            last_text = max(self._last_text.values())
            self._telemetry.observe_complete(self._tenant_id, last_text - self._arrived)


class _Parts:
    """One sibling's answer as it comes."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[ToldToken] = []
        self._finish: Finish | None = None

    def add(self, delta: TextDelta, finish: Finish | None) -> None:
        self._texts.append(delta.text)
        self._tokens += delta.tokens
        self._finish = finish

    def choice(self) -> Choice:
        assert self._finish is not None
        return Choice("".join(self._texts), self._finish, self._tokens)


def _finish_of(delta: TextDelta) -> Finish | None:
    """OpenAI knows no `abort` and no `error` as a reason: they are errors."""
    if delta.finish_reason == "abort" or delta.finish_reason == "error":
        raise _unfinished()
    return delta.finish_reason


def _unfinished() -> ApiError:
    return ApiError(500, "generation_failed", "The engine could not finish this answer.")
