"""What the applications are called in Serve, and which of them are pools of replicas."""

from __future__ import annotations

APPLICATION = "headrace"
"""The gateways' application."""
REPLICA_DEPLOYMENT = "Replica"
_PREFIX = "engine-"


def application_of(pool_id: str) -> str:
    return _PREFIX + pool_id


def pool_of(application: str) -> str | None:
    """None for an application that is no pool."""
    return application.removeprefix(_PREFIX) if application.startswith(_PREFIX) else None
