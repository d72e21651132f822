"""What every actor of one cluster is told at its start. Made once by the launcher, sent as JSON."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cluster.run_dir import RunDir
from cluster.settings import ServeSettings
from engine.config import EngineConfig
from engine.dtype import resolve_kv_dtype


class ClusterSpec(BaseModel):
    model_config = ConfigDict(frozen=True)

    settings: ServeSettings
    engine: EngineConfig
    dtype: str
    """Resolved: float32 or bfloat16."""
    served_name: str
    redis_url: str
    cluster_id: str
    """Random; tells this start from earlier ones."""
    run_path: Path
    threads_per_replica: int

    @property
    def kv_dtype(self) -> str:
        """Of the KV cache, resolved."""
        return resolve_kv_dtype(self.settings.kv_cache_dtype, self.dtype)

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.run_path)

    def to_json(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> ClusterSpec:
        return cls.model_validate_json(text)
