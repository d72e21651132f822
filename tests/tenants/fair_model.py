"""The fair queue a second time, by brute force: exact credits, one list of all that waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tenants.batch_floor import MAX_OUTPUT_DEBT
from tenants.fair_queue import Queued, Share
from tenants.terms import ServiceClass

Account = tuple[ServiceClass, str]


def account_of(share: Share) -> Account:
    return (share.service_class, share.tenant_id)


@dataclass(eq=False)
class Credit:
    """An account's, in tokens of service, not by weight."""

    tokens: Fraction
    most: Fraction
    """But for what is taken back."""
    weight: int


class ModelCharge(NamedTuple):
    entry: Queued
    credit: Credit | None
    is_contended: bool


class FairQueueModel:
    """A tenant has the same weight in all its entries."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._credits: dict[Account, Credit] = {}
        self._owed = Fraction(0)
        """To batch, in tokens of service."""
        self.waiting: list[Queued] = []
        """In the order of arrival."""

    def push(self, entry: Queued) -> None:
        self._know(entry.share)
        self.waiting.append(entry)
        self._grant()

    def remove(self, entry_id: str) -> Queued | None:
        found = next((entry for entry in self.waiting if entry.entry_id == entry_id), None)
        if found is not None:
            self.waiting.remove(found)
            self._grant()
        return found

    def peek(self) -> Queued | None:
        heads: dict[Account, Queued] = {}
        for entry in self.waiting:
            heads.setdefault(account_of(entry.share), entry)
        turn = [head for head in heads.values() if head.share.service_class == self._next_class()]
        in_credit = [head for head in turn if self._credits[account_of(head.share)].tokens > 0]
        return min(in_credit, key=self._order, default=None)

    def pop(self) -> Queued | None:
        entry = self.peek()
        if entry is not None:
            self._charge(entry.share, _service(entry))
            self.waiting.remove(entry)
            self._grant()
        return entry

    def charge_of(self, entry: Queued) -> ModelCharge:
        classes = {one.share.service_class for one in self.waiting} - {entry.share.service_class}
        return ModelCharge(entry, self._credits.get(account_of(entry.share)), bool(classes))

    def refund(self, charge: ModelCharge) -> None:
        share, tokens = charge.entry.share, _service(charge.entry)
        if charge.is_contended:
            self._owed += -tokens / 20 if share.service_class == "interactive" else tokens * 19 / 20
        if charge.credit is not None and charge.credit is self._credits.get(account_of(share)):
            charge.credit.tokens += tokens
            self._grant()

    def charge(self, share: Share, tokens: int) -> None:
        least = min(self._owed, -Fraction(MAX_OUTPUT_DEBT, 20))
        self._charge(share, Fraction(tokens))
        self._owed = max(self._owed, least)
        self._grant()

    def backlog(self) -> dict[str, int]:
        tokens: Counter[str] = Counter()
        for entry in self.waiting:
            tokens[entry.share.tenant_id] += entry.uncached_tokens
        return tokens

    def newest_below(self, share: Share) -> Queued | None:
        def standing(of: Share) -> tuple[str, int]:
            return (of.service_class, of.weight)  # "batch" < "interactive"

        below = [entry for entry in reversed(self.waiting) if standing(entry.share) < standing(share)]
        return min(below, key=lambda entry: standing(entry.share), default=None)

    def _order(self, head: Queued) -> tuple[int, Fraction, int]:
        account = account_of(head.share)
        credit = self._credits[account]
        return (-head.cached_tokens, -credit.tokens / credit.weight, self.waiting.index(head))

    def _next_class(self) -> ServiceClass:
        waiting = {entry.share.service_class for entry in self.waiting}
        if len(waiting) == 2:
            return "batch" if self._owed > 0 else "interactive"
        return "batch" if "batch" in waiting else "interactive"

    def _know(self, share: Share) -> None:
        most = Fraction(self._quantum * share.weight)
        self._credits.setdefault(account_of(share), Credit(most, most, share.weight))

    def _charge(self, share: Share, tokens: Fraction) -> None:
        self._know(share)
        self._credits[account_of(share)].tokens -= tokens
        is_contended = len({entry.share.service_class for entry in self.waiting}) == 2
        if is_contended:
            self._owed += tokens / 20 if share.service_class == "interactive" else -tokens * 19 / 20
        elif share.service_class == "interactive":
            self._owed = min(Fraction(0), self._owed + tokens / 20)

    def _grant(self) -> None:
        """A quantum to all of the class, again and again; nobody gets more than one.

        Who does not wait and has a whole one is as good as new.
        """
        for service_class in ("interactive", "batch"):
            known = [account for account in self._credits if account[0] == service_class]
            waiting = {account_of(entry.share) for entry in self.waiting} & set(known)
            if not waiting:
                for account in known:
                    del self._credits[account]
                continue
            while all(self._credits[account].tokens <= 0 for account in waiting):
                for account in known:
                    credit = self._credits[account]
                    credit.tokens = min(credit.most, credit.tokens + credit.most)
            for account in set(known) - waiting:
                if self._credits[account].tokens >= self._credits[account].most:
                    del self._credits[account]


def _service(entry: Queued) -> Fraction:
    return Fraction(entry.uncached_tokens) + Fraction(entry.cached_tokens, 10)
