"""Whether a node of a running Ray is what headrace needs, asked before anything is deployed.

Each node says what it is as named facts; the launcher says what they must be; each difference is one line.
Secrets travel as digests keyed by a nonce, and are never shown.
"""

from __future__ import annotations

import hmac
import os
import platform
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path

from cluster.ray_env import ON_NODES, PROXY_PATHS, REPOSITORY, SECRETS
from cluster.redis_check import check_redis
from cluster.redis_server import RedisServerError
from cluster.settings import ServeSettings
from cluster.stages import StartError
from engine.loading.source import ModelError, resolve_model

PRIVATE = "a path in a directory that only its owner can enter"
PACKAGES = ("ray", "torch")
ROOMS = ("kernels", "engine", "tenants", "cluster")
"""What runs on a node."""

Facts = dict[str, str]
"""Name → value; empty where there is none."""


@dataclass(frozen=True)
class Question:
    """What each node is asked. Small, and without a secret but the Redis URL's password."""

    nonce: bytes
    model: str
    redis_url: str | None
    """None: headrace starts one, for its own node."""


def node_facts(question: Question) -> Facts:
    """What this node is. Runs there, and in the launcher for what each must be."""
    packages = {name: _version(name) for name in PACKAGES}
    return environment_facts(question.nonce, os.environ) | {
        "Python": platform.python_version(),
        **packages,
        "headrace's code": _code_digest(),
        f"--model {question.model}": _model(question.model),
        "--redis-url": _redis(question.redis_url),
    }


def environment_facts(nonce: bytes, told: Mapping[str, str]) -> Facts:
    """What a process was `told` by the environment that `ray start` had."""
    return {
        **{name: told.get(name, "") for name in ON_NODES},
        **{name: _where(told.get(name, "")) for name in PROXY_PATHS},
        **{name: _digest(nonce, told.get(name, "")) for name in SECRETS},
    }


def needed_facts(of_launcher: Facts) -> Facts:
    """What each node must be, for a launcher that is `of_launcher`: its secrets, its code, its model."""
    return of_launcher | ON_NODES | dict.fromkeys(PROXY_PATHS, PRIVATE)


def mismatches(address: str, facts: Facts, needed: Facts) -> Iterator[str]:
    """One line for each fact of the node at `address` that is not as needed."""
    for name, must in needed.items():
        found = facts.get(name, "")
        if found == must:
            continue
        if name in SECRETS:
            yield f"node {address}: {name} is {'another one' if found else 'not set'}, must be the launcher's"
        else:
            yield f"node {address}: {name} is {found or 'not set'}, must be {must or 'not set'}"


def check_reach(settings: ServeSettings, told: Mapping[str, str], addresses: Sequence[str]) -> None:
    """Raises `StartError` for what serves one node and not those at `addresses`, one for each node."""
    if len(addresses) == 1:
        return
    among = f"this Ray has {len(addresses)} nodes"
    if settings.redis_url is None:
        raise StartError(
            f"--redis-url is missing: {among}, and the Redis that headrace starts is for one",
            "start a Redis that every node reaches, and give its URL",
        )
    if settings.redis_url.startswith("unix:"):
        raise StartError(
            f"--redis-url is a unix socket: {among}, and a socket is on one of them",
            "give redis://host:port of a Redis that every node reaches",
        )
    if not told.get("HEADRACE_SECRET"):
        raise StartError(
            f"HEADRACE_SECRET is not set: {among}, and {settings.state_dir}/secret is on one of them",
            "export one secret before `headrace ray-env ray start` on every node, and here",
        )
    if len(set(addresses)) > 1 and _is_loopback(settings.host):
        raise StartError(
            f"--host {settings.host} is reached from its own node only: {among}",
            "give --host 0.0.0.0, and let a firewall close all ports but the front one",
        )


def _where(path: str) -> str:
    """`PRIVATE` if nobody else can put something in the path's place; else the path itself."""
    try:
        status = Path(path).parent.lstat()
    except OSError:
        return path
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return PRIVATE if path and is_ours else path


def _digest(nonce: bytes, secret: str) -> str:
    return hmac.digest(nonce, secret.encode(), "sha256").hex() if secret else ""


def _version(package: str) -> str:
    """Without the build's suffix: torch for a CPU and for a GPU may run side by side."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "not installed"


def _code_digest() -> str:
    """Of all files that run: a version number stays the same from commit to commit."""
    digest = blake2b(digest_size=6)
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*")):
            if path.suffix in (".py", ".lua"):
                content = path.read_bytes()
                digest.update(f"{path.relative_to(REPOSITORY)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _model(name: str) -> str:
    try:
        config = resolve_model(name).config
    except ModelError as error:
        return f"unusable ({error.message})"
    return f"{config.model_id} {config.revision}"


def _redis(url: str | None) -> str:
    """Which server answers there: another one on each node would be as silent as none is loud."""
    if url is None:
        return ""
    try:
        return f"server {check_redis(url).run_id}"
    except RedisServerError as error:
        return f"unusable ({error})"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
