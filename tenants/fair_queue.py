"""A gateway's waiting requests: whose turn it is, how much goes before a new one, and who is shed first.

Algorithm: interactive before batch, but for the floor of batch (`batch_floor.py`); inside a class tenants
share by weight, in tokens of service (`class_queue.py`, with the bound on how far two of them come apart);
inside a tenant, first come, first served. Input is charged when a request leaves, output as it comes.
Failure mode: what requests are still to make is not known when they leave. A burst of short prompts with long
answers takes more than its share, and its tenant waits for that afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tenants.batch_floor import BatchFloor
from tenants.class_queue import ClassQueue
from tenants.queued import Fits, Queued, Share, Work, anyone
from tenants.shed_order import ShedOrder
from tenants.tenant_line import TenantLine

__all__ = ["QUANTUM", "FairQueue", "Queued", "Share"]

QUANTUM = 512
"""Tokens of service by weight. More follows prefixes further, and lets others wait longer meanwhile."""


class Charge(NamedTuple):
    """For a request's input, as it was made when it left."""

    entry: Queued
    line: TenantLine | None
    """That it was made to; None: it was forgotten at once."""
    is_contended: bool
    """Whether it counted between the classes."""


class FairQueue:
    """Owns the entries that wait. While there are any, `peek` and `pop` give one that fits, if any head does.

    A change is O(log tenants), amortised, however many entries wait.
    """

    def __init__(self, quantum: int = QUANTUM) -> None:
        if quantum < 1:
            raise ValueError(f"quantum must be at least 1, not {quantum}")
        self._interactive = ClassQueue(quantum)
        self._batch = ClassQueue(quantum)
        self._floor = BatchFloor()
        self._shed_order = ShedOrder()
        self._entries: dict[str, Queued] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._entries

    def num_of(self, tenant_id: str) -> int:
        """Entries of the tenant, in both classes."""
        return self._interactive.num_of(tenant_id) + self._batch.num_of(tenant_id)

    def backlog(self) -> Mapping[str, int]:
        """Uncached tokens that wait, of each tenant that has any."""
        tokens: Counter[str] = Counter()
        for queue in (self._interactive, self._batch):
            tokens.update(queue.backlog())
        return tokens

    def push(self, entry: Queued) -> None:
        """Raises ValueError if an entry of this id waits already."""
        if entry.entry_id in self._entries:
            raise ValueError(f"entry {entry.entry_id} waits already")
        self._entries[entry.entry_id] = entry
        self._shed_order.add(entry)
        self._queue_of(entry.share).push(entry)

    def remove(self, entry_id: str) -> Queued | None:
        """Takes it out uncharged; None if it does not wait."""
        entry = self._entries.get(entry_id)
        if entry is not None:
            self._queue_of(entry.share).remove(entry)
            self._forget(entry)
        return entry

    def peek(self, fits: Fits = anyone) -> Queued | None:
        """What `pop` would give."""
        first, second = self._queues_in_turn()
        return first.peek(fits) or second.peek(fits)

    def pop(self, fits: Fits = anyone) -> Queued | None:
        """Whose turn it is, of the tenants' heads that fit; its input is charged at once. None: no one's."""
        entry = self.peek(fits)
        if entry is not None:
            self._count(entry.share, entry.input_service, is_input=True, is_contended=self._is_contended)
            self._queue_of(entry.share).pop(fits)
            self._forget(entry)
        return entry

    def charge_of(self, entry: Queued) -> Charge:
        """Of an entry that has left just now."""
        line = self._queue_of(entry.share).line_of(entry.share.tenant_id)
        other = self._batch if entry.share.service_class == "interactive" else self._interactive
        return Charge(entry, line, other.is_waiting)

    def refund(self, charge: Charge) -> None:
        """Takes it back, once: the request got no service after all.

        Its tenant's counter is as if it had never been charged. So is what batch is owed if both classes have
        waited since; else it may be off by the request's part.
        """
        entry = charge.entry
        if charge.is_contended:
            self._count(entry.share, -entry.input_service, is_input=True, is_contended=True)
        self._queue_of(entry.share).refund(entry, charge.line)

    def charge(self, share: Share, tokens: float) -> None:
        """Service that went to a tenant after the queue or past it: output, and what other gateways served.

        Raises ValueError if `tokens` is negative.
        """
        if tokens < 0:
            raise ValueError(f"tokens must not be negative, but are {tokens}")
        self._count(share, tokens, is_input=False, is_contended=self._is_contended)
        self._queue_of(share).charge(share, tokens)

    def work_ahead(self, share: Share, *, without_lower: bool = False) -> Work:
        """Of what waits now, what goes before a new entry: an estimate, O(tenants).

        As if nobody else came, nothing were left to make of what runs, and no prefix preferred;
        `without_lower`: as if all that stands lower were gone.
        """
        least_weight = share.weight if without_lower else 0
        ahead = self._queue_of(share).work_ahead(share, least_weight)
        if share.service_class == "batch":
            return ahead.plus(self._interactive.work().first(self._floor.interactive_before(ahead.tokens)))
        if without_lower:
            return ahead
        return ahead.plus(self._batch.work().first(self._floor.batch_beside(ahead.tokens)))

    def work_of(self, share: Share) -> Work:
        """What waits of its tenant in its class."""
        return self._queue_of(share).work_of(share.tenant_id)

    def newest_below(self, share: Share) -> Queued | None:
        """Whom shedding takes instead of a request of this share; None: nobody stands lower."""
        return self._shed_order.newest_below(share)

    def num_below(self, share: Share) -> int:
        """Entries that stand lower than a request of this share."""
        return self._shed_order.num_below(share)

    def _queue_of(self, share: Share) -> ClassQueue:
        return self._interactive if share.service_class == "interactive" else self._batch

    def _queues_in_turn(self) -> tuple[ClassQueue, ClassQueue]:
        is_batch_first = self._batch.is_waiting and (self._floor.is_due or not self._interactive.is_waiting)
        return (self._batch, self._interactive) if is_batch_first else (self._interactive, self._batch)

    @property
    def _is_contended(self) -> bool:
        return self._interactive.is_waiting and self._batch.is_waiting

    def _count(self, share: Share, tokens: float, *, is_input: bool, is_contended: bool) -> None:
        if share.service_class == "interactive":
            self._floor.interactive_served(tokens, is_contended)
        elif is_input:
            self._floor.batch_served(tokens, is_contended)
        else:
            self._floor.batch_made(tokens, is_contended)

    def _forget(self, entry: Queued) -> None:
        del self._entries[entry.entry_id]
        self._shed_order.remove(entry)
