"""Who goes next inside a class: deficit longest prefix match over virtual counters.

Algorithm (DLPM: Cao et al., Locality-aware Fair Scheduling in LLM Serving, 2025, arXiv:2501.14312). Every
tenant is granted the same tokens of service by weight, in quanta; its virtual counter says what it has had of
them. Who has had less is *in credit*, by weight × (granted − counter). Of the waiting in credit the longest
cached prefix goes first, then the most credit by weight, then arrival. When no waiting tenant is in credit,
as many quanta as it takes are granted at once. Who does not wait earns nothing: what is left of the last
quantum is the most that it finds on its return. Its debt stays until grants have passed it.

Bound. S: service charged to a tenant in [t1, t2], w: its weight, q: the quantum, D: the most that it may get
after one leave and before the next, one input and what its running requests are still to make. Of two tenants
i and j that wait all the time

    |S_i/w_i − S_j/w_j|  ≤  2q + D_i/w_i + D_j/w_j

Proof. No waiting counter is more than q below what is granted: a grant rises to the least multiple of q above
the least of them, and who joins starts there. Who leaves is in credit, so its counter is less than q above
any waiting one, and until it leaves again less than q + D/w. S_i/w_i − S_j/w_j is the change of the
difference of two counters, which is thus always between −q − D_j/w_j and q + D_i/w_i. That i gets no more
than this ahead needs only j to wait all the time.
Without preferred prefixes q may go to 0: the bound of VTC (Sheng et al., Fairness in Serving Large Language
Models, OSDI 2024, arXiv:2401.00588).

Several queues that tell each other what they served, at most s seconds late: of tenants that wait at all of
them, who leaves is in credit but for what its queue has not heard, so U_i/w_i + U_j/w_j comes on top, U being
what the tenant is served elsewhere within s, at most rate × s.

A charge that is taken back leaves its tenant's counter as if it had never been made; what was granted for it
stays so, and the counter may be so much further below that. R_i/w_i + R_j/w_j comes on top, R being the most
that is charged to a tenant at a time and then taken back.

While nobody of the class waits, service is at nobody's expense, and is forgotten as soon as it is had.
Failure mode: a queue that runs empty again and again remembers nothing; there, waits are short. And a head
that no place fits holds up its own line only: to it and to who goes in its stead the bound does not apply.
"""

from __future__ import annotations

from itertools import chain, count

from tenants.queued import Fits, Queued, Share, Work, anyone
from tenants.ranking import Ranking
from tenants.tenant_line import TenantLine


class ClassQueue:
    """Owns the lines of the class's tenants and what is granted, tokens of service by weight.

    While anybody waits, somebody waiting is in credit. A line is in exactly one of three rankings; those of
    tenants that neither wait nor have used a part of the last quantum are forgotten. Every change is
    O(log tenants), amortised.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._arrivals = count()
        self._begin()

    def _begin(self) -> None:
        self._granted = 0.0
        self._lines: dict[str, TenantLine] = {}
        self._in_credit, self._overdrawn, self._idle = Ranking(), Ranking(), Ranking()

    @property
    def is_waiting(self) -> bool:
        return len(self._in_credit) + len(self._overdrawn) > 0

    def num_of(self, tenant_id: str) -> int:
        line = self._lines.get(tenant_id)
        return 0 if line is None else len(line)

    def backlog(self) -> dict[str, int]:
        """Uncached tokens that wait, of each tenant that has any."""
        return {name: line.uncached_tokens for name, line in self._lines.items() if line.uncached_tokens}

    def push(self, entry: Queued) -> None:
        line = self._line(entry.share.tenant_id)
        line.append(entry, next(self._arrivals))
        self._changed(entry.share.tenant_id, line)

    def remove(self, entry: Queued) -> None:
        """Raises KeyError if it does not wait here."""
        line = self._lines[entry.share.tenant_id]
        line.remove(entry.entry_id)
        self._changed(entry.share.tenant_id, line)

    def peek(self, fits: Fits = anyone) -> Queued | None:
        """The first that fits. Who does not is passed over and keeps what it is due."""
        if not self._in_credit:
            return None
        _, tenant_id = self._in_credit.least()
        head = self._lines[tenant_id].head
        return head if fits(head) else self._next_that_fits(fits)

    def _next_that_fits(self, fits: Fits) -> Queued | None:
        """O(tenants log tenants): all may have to be asked."""
        turns = chain(self._in_credit.names(), self._overdrawn.names())
        heads = (self._lines[tenant_id].head for tenant_id in turns)
        return next(filter(fits, heads), None)

    def pop(self, fits: Fits = anyone) -> Queued | None:
        entry = self.peek(fits)
        if entry is not None:
            self._lines[entry.share.tenant_id].charge(entry.input_service, entry.share.weight)
            self.remove(entry)
        return entry

    def charge(self, share: Share, tokens: float) -> None:
        if self.is_waiting:
            line = self._line(share.tenant_id)
            line.charge(tokens, share.weight)
            self._changed(share.tenant_id, line)

    def line_of(self, tenant_id: str) -> TenantLine | None:
        """As long as it is known."""
        return self._lines.get(tenant_id)

    def refund(self, entry: Queued, line: TenantLine | None) -> None:
        """Takes back what `pop` charged to the line; one that is forgotten since then owes nothing."""
        tenant_id = entry.share.tenant_id
        if line is not None and line is self._lines.get(tenant_id):
            line.charge(-entry.input_service, entry.share.weight)
            self._changed(tenant_id, line)

    def work(self) -> Work:
        """All that waits."""
        lines = self._lines.values()
        return Work(sum(line.tokens for line in lines), sum(line.seats for line in lines))

    def work_of(self, tenant_id: str) -> Work:
        return self._line(tenant_id).work

    def work_ahead(self, share: Share, least_weight: int = 0) -> Work:
        """Of what waits, what goes before a new entry, prefixes left aside. O(tenants).

        Its tenant's line, and of each other one that weighs `least_weight` at least until that tenant has had
        more by weight.
        """
        own = self._line(share.tenant_id)
        until = own.counter + own.tokens / share.weight
        tokens, seats = own.work
        for line in self._lines.values():
            if line.counter <= until and line is not own and line.weight >= least_weight:
                part = line.work_until(until)
                tokens += part.tokens
                seats += part.seats
        return Work(tokens, seats)

    def _line(self, tenant_id: str) -> TenantLine:
        """The one that is known, or a new one as it would join."""
        line = self._lines.get(tenant_id)
        return TenantLine(self._granted - self._quantum) if line is None else line

    def _changed(self, tenant_id: str, line: TenantLine) -> None:
        self._lines[tenant_id] = line
        for ranking in (self._in_credit, self._overdrawn, self._idle):
            ranking.discard(tenant_id)
        self._place(tenant_id)
        if not self.is_waiting:
            self._begin()
        elif not self._in_credit:
            self._grant()

    def _place(self, tenant_id: str) -> None:
        """Into the ranking that its line belongs in, or into oblivion."""
        line = self._lines[tenant_id]
        if line and line.counter < self._granted:
            self._in_credit.put(tenant_id, line.turn)
        elif line:
            self._overdrawn.put(tenant_id, (line.counter,))
        elif line.counter > self._granted - self._quantum:
            self._idle.put(tenant_id, (line.counter,))
        else:
            del self._lines[tenant_id]

    def _grant(self) -> None:
        """As many quanta as bring the waiting tenant that has had the least back into credit."""
        (least, *_), _ = self._overdrawn.least()
        self._granted = (least // self._quantum + 1) * self._quantum
        for ranking in (self._overdrawn, self._idle):
            for tenant_id in ranking.take_below(self._granted):
                self._place(tenant_id)
