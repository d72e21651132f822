"""What every actor of one cluster is told at its start. Made once by the launcher, sent as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cluster.golden import GoldenPrompt
from cluster.run_dir import RunDir
from cluster.settings import ServeSettings
from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What each replica's engine will be: decided before anything is loaded, with every `auto` resolved."""

    config: EngineConfig
    dtype: str
    """Of the weights: float32 or bfloat16."""
    kv_dtype: str
    """Of the KV cache."""
    warning: str | None = None
    """Said at the start if the context had to be lowered."""


class ClusterSpec(BaseModel):
    model_config = ConfigDict(frozen=True)

    settings: ServeSettings
    engine: EnginePlan
    served_name: str
    redis_url: str
    cluster_id: str
    """Random; tells this start from earlier ones."""
    pool_id: str = "1"
    """Of the replicas that are told this: lower-case letters, digits, hyphens. A gateway reads all pools."""
    run_path: Path
    threads_per_replica: int
    num_nodes: int = 1
    """Of Ray, as the start found it."""
    revision: str | None = None
    """Of the model that the launcher saw; a replica that finds other files refuses to load them."""
    golden: tuple[GoldenPrompt, ...] = ()
    """Each replica answers these before it serves; without any, the built-in one."""
    public_prefixes: tuple[tuple[int, ...], ...] = ()
    """In tokens, each of a block at least: their blocks are shared by all tenants."""

    @property
    def reports_id(self) -> str:
        """Where the replicas of this pool tell how far their start is."""
        return f"{self.cluster_id}:{self.pool_id}"

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.run_path)

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> ClusterSpec:
        return cls.model_validate_json(text)
