"""Everything that `headrace serve` can be told: one model for flags, environment, file and tests.

Order: command line, then `HEADRACE_*`, then the file of `--config`, then the default written here.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from cluster.routing import Routing
from engine.config import BackendName
from engine.faults import parse_faults
from engine.quantization import Quantization

ENV_PREFIX = "HEADRACE_"
Dtype = Literal["auto", "float32", "bfloat16"]
TEST_FIELDS = frozenset({"fault"})
"""Left out of the help text."""
SPOOLS = "spool"
"""Folder below the state directory."""
FAULTS_ALLOWED = "HEADRACE_ALLOW_FAULTS"
"""Environment variable without which `--fault` is refused: it has no place in service."""
Device = Literal["cpu", "cuda"]
LogLevel = Literal["debug", "info", "warning", "error"]

_MEMORY = re.compile(r"([0-9]{1,15})([kKmMgG]?)")
_RAY_ADDRESS = re.compile(r"auto|[^:/\s]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class ServeSettings(BaseSettings):
    """Settings of one cluster. Field descriptions are the help texts of the flags."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore", frozen=True)

    model: str = Field("smollm2", description="GGUF file, Hugging Face folder, short name, or tape:[FILE]")
    served_model_name: str | None = Field(
        None, min_length=1, max_length=128, description="name clients use; default: the model's own"
    )
    replicas: int = Field(
        1, ge=1, le=256, description="engine replicas; with --max-replicas: those of the start"
    )
    min_replicas: int | None = Field(
        None, ge=0, le=256, description="never fewer, for --max-replicas; 0: none without demand; default: 1"
    )
    max_replicas: int | None = Field(
        None, ge=1, le=256, description="scale with demand, up to so many; default: --replicas is fixed"
    )
    headroom: float = Field(
        1.2, ge=1, le=10, description="capacity to be there, as a factor of the demand expected"
    )
    scale_down_delay_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="a replica leaves when the demand of so long needs none of it; the last one, after so "
        "long without any",
    )
    gateways: int = Field(1, ge=1, le=64, description="HTTP gateways behind the front port")
    host: str = Field("127.0.0.1", description="address the front port listens on")
    port: int = Field(8000, ge=1, le=65535, description="front port")
    ray_address: str | None = Field(
        None,
        description="Ray to join: host:port, or auto for the one on this machine; default: one is started",
    )
    redis_url: str | None = Field(None, description="existing Redis ≥ 6.2; default: one is started")
    state_dir: Path = Field(
        Path(".headrace"), description="keys, secret, Redis data, settled requests, copy of the tenants"
    )
    device: Device = Field("cpu", description="where the engine computes; cuda has not met a GPU yet")
    attention_backend: BackendName = Field(
        "auto", description="whose kernels; auto: triton on cuda, cpu on a CPU"
    )
    dtype: Dtype = Field("auto", description="of the weights; auto: bfloat16 where the CPU is good at it")
    quantization: Quantization = Field(
        "none",
        description="of the projections (not embedding, norms, lm_head); without it files are dequantised to "
        "--dtype, with stored they stay as they are, int8 and int4 round whatever they hold; on a CPU "
        "bfloat16 gains by it only with --max-num-seqs 8 or less",
    )
    kv_cache_dtype: Dtype = Field("auto", description="of the KV cache; auto: that of the weights")
    deterministic: bool = Field(
        False, description="reference mode: the same bits whatever the batch; float32, one thread, slow"
    )
    kv_memory: int = Field(2**30, ge=2**20, description="KV memory a replica, bytes or 512M, 1G")
    max_model_len: int | None = Field(
        None, ge=2, description="longest prompt + output, tokens; default: the model's, lowered to the pool"
    )
    allow_untrained_context: bool = Field(
        False, description="let --max-model-len exceed what the model was trained for: answers get worse"
    )
    max_num_seqs: int = Field(32, ge=1, le=1024, description="requests that run at once in a replica")
    max_num_batched_tokens: int = Field(256, ge=1, le=65536, description="token budget of one engine step")
    watchdog_s: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="a replica that has work and stands still for so long, or twice its warm-up, is replaced",
    )
    routing: Routing = Field("token-load", description="how a request's replica is chosen")
    warm_prefixes: int = Field(
        8,
        ge=0,
        le=64,
        description="shared prefixes that a new replica computes before requests ask for them; 0: none",
    )
    interactive_deadline_s: float = Field(
        10.0, gt=0, le=3600, description="first token of an interactive request, else it is turned away: 503"
    )
    batch_deadline_s: float = Field(600.0, gt=0, le=86_400, description="the same of a batch request")
    max_waiting: int = Field(4096, ge=1, le=10**6, description="requests that may wait at one gateway")
    drain_limit_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="how long a leaving replica or gateway may finish its answers before they move or end",
    )
    spool_days: int = Field(
        90, ge=2, le=3660, description="for how long the lines of settled requests are kept on disk"
    )
    golden: Path | None = Field(
        None, description="JSONL of prompts, and how their answers begin, that each replica must pass first"
    )
    public_prefix: Path | None = Field(
        None,
        description="JSONL of beginnings of prompts whose cached blocks all tenants share, each at least "
        'a block of 16 tokens: {"text": …}, {"token_ids": […]} or {"messages": […]} a line',
    )
    log_level: LogLevel = Field("info", description="what goes to the log files")
    fault: str | None = Field(None, description="steps that fail on purpose, for tests: raise@3,nan@5:0")

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _with_unit(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        parts = _MEMORY.fullmatch(value)
        if parts is None:
            raise ValueError("give bytes, or 512M, 1G")
        return int(parts[1]) * _UNITS[parts[2].lower()]

    @field_validator("ray_address")
    @classmethod
    def _ray_address_is_of_a_cluster(cls, value: str | None) -> str | None:
        if value is not None and not _RAY_ADDRESS.fullmatch(value):
            raise ValueError("give auto, or host:port as `ray start --head` printed it")
        return value

    @field_validator("fault")
    @classmethod
    def _fault_is_allowed(cls, value: str | None) -> str | None:
        if value is not None:
            if os.environ.get(FAULTS_ALLOWED) != "1":
                raise ValueError(f"is for tests only: it needs {FAULTS_ALLOWED}=1 in the environment")
            parse_faults(value)
        return value

    @model_validator(mode="after")
    def _reference_mode_is_float32(self) -> ServeSettings:
        for flag, dtype in (("--dtype", self.dtype), ("--kv-cache-dtype", self.kv_cache_dtype)):
            if self.deterministic and dtype == "bfloat16":
                raise ValueError(
                    f"--deterministic computes in float32: give {flag} float32 or auto, not bfloat16"
                )
        return self

    @model_validator(mode="after")
    def _kernels_run_on_the_device(self) -> ServeSettings:
        name, device = self.attention_backend, self.device
        if name != "auto" and self.deterministic:
            raise ValueError("--deterministic has kernels of its own: give --attention-backend auto")
        if (name, device) == ("cpu", "cuda"):
            raise ValueError("--attention-backend cpu goes with --device cpu")
        if (name, device) == ("triton", "cpu") and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError("--attention-backend triton goes with --device cuda")
        return self

    @model_validator(mode="after")
    def _replicas_are_a_range(self) -> ServeSettings:
        if self.max_replicas is None:
            if self.min_replicas is not None:
                raise ValueError("--min-replicas needs --max-replicas: without it --replicas is fixed")
            return self
        for flag, count in (("--min-replicas", self.min_replicas or 0), ("--replicas", self.replicas)):
            if count > self.max_replicas:
                raise ValueError(f"{flag} {count} is more than --max-replicas {self.max_replicas}")
        return self

    @property
    def fewest_replicas(self) -> int:
        if self.max_replicas is None:
            return self.replicas
        return 1 if self.min_replicas is None else self.min_replicas

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.replicas

    @property
    def first_replicas(self) -> int:
        """Of the start, at least one: it shows that the model loads, and how long that takes."""
        return max(self.replicas, self.fewest_replicas)

    @model_validator(mode="after")
    def _budget_holds_all_decodes(self) -> ServeSettings:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every running request decodes in every step"
            )
        return self


def merged_settings(flags: Mapping[str, Any], file: Mapping[str, Any]) -> ServeSettings:
    """In the order above. Raises pydantic's `ValidationError`."""
    return ServeSettings(**{**file, **EnvSettingsSource(ServeSettings)(), **flags})


def root_secret(state_dir: Path) -> bytes:
    """`HEADRACE_SECRET`, else `<state-dir>/secret` (made on first use, mode 0600)."""
    from_env = os.environ.get("HEADRACE_SECRET")
    if from_env:
        return from_env.encode()
    path = state_dir / "secret"
    if not path.exists():
        _make_secret(path)
    secret = path.read_bytes()
    if not secret:
        raise ValueError(f"{path} is empty: put the secret of then into it, or remove it to start anew")
    return secret


def _make_secret(path: Path) -> None:
    """Whole or not at all: a crash on the way leaves no file, and of two makers one wins."""
    fresh = path.with_name(f"secret.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(32).hex().encode())
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
