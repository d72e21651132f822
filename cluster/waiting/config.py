"""How long and how many may wait at one gateway, and when answers are shortened."""

from __future__ import annotations

from dataclasses import dataclass

from tenants.terms import ServiceClass


@dataclass(frozen=True, slots=True)
class WaitingConfig:
    """Raises ValueError, naming the field, for what makes no sense."""

    interactive_deadline_s: float = 10.0
    """From arrival to first token."""
    batch_deadline_s: float = 600.0
    max_waiting: int = 4096
    """Requests."""
    max_held: int = 256
    """Requests that may wait while no replica takes work."""
    brownout_begins_at: float = 0.5
    """Of the interactive deadline, as the wait of all that is interactive."""
    brownout_ends_at: float = 0.25
    brownout_max_tokens: int = 256
    """Of output."""

    def __post_init__(self) -> None:
        for field in ("interactive_deadline_s", "batch_deadline_s"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be above 0, not {getattr(self, field)}")
        for field in ("max_waiting", "max_held", "brownout_max_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, not {getattr(self, field)}")
        if not 0 <= self.brownout_ends_at <= self.brownout_begins_at:
            raise ValueError(
                f"brownout_ends_at must be between 0 and brownout_begins_at, not {self.brownout_ends_at}"
            )

    def first_token_by_s(self, service_class: ServiceClass, arrived_s: float, answer_by_s: float) -> float:
        """The class's deadline of a request that arrived then; no later than that of its whole answer."""
        is_interactive = service_class == "interactive"
        limit_s = self.interactive_deadline_s if is_interactive else self.batch_deadline_s
        return min(arrived_s + limit_s, answer_by_s)

    def max_waiting_at(self, num_replicas: int) -> int:
        return self.max_waiting if num_replicas else min(self.max_held, self.max_waiting)
