"""Who hears of what happens at a gateway's links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.link import Hello
from cluster.served_elsewhere import FlowService
from engine.request import Timing


@dataclass(frozen=True)
class LinkEvents:
    """Each is called at once, from whatever task reads the link, and must not raise."""

    on_discarded: Callable[[int], None] = lambda tokens: None
    """So many tokens came for which nobody waits."""
    on_timing: Callable[[Timing], None] = lambda timing: None
    """An answer has ended at its engine."""
    on_lost: Callable[[], None] = lambda: None
    """A replica is unheard or gone that was not asked to leave, or left before its answers had ended."""
    on_credit: Callable[[], None] = lambda: None
    """A request may leave its queue that could not before."""
    on_served: Callable[[Sequence[FlowService]], None] = lambda served: None
    """What tenants got through other gateways."""
    on_hello: Callable[[Hello], None] = lambda hello: None
    """A replica has said hello; it gets no work before this has returned."""


UNHEARD = LinkEvents()
"""Nobody hears of anything."""
