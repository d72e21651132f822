"""This process's connection to Ray: one that was started for it, or one that runs and is joined."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from typing import Any

from cluster.node_check import Facts, Question, check_reach, mismatches, needed_facts, node_facts
from cluster.ray_env import ON_NODES, SECRETS, ray_environment
from cluster.run_dir import RunDir
from cluster.settings import ServeSettings
from cluster.stages import StartError

OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's smallest object store: tokens travel in calls, nothing of ours is stored."""
ANSWER_TIMEOUT_S = 60.0
"""For a node's facts: a worker process is started there, and the model's file is read once."""
KNOCK_TIMEOUT_S = 3.0
_COMMON: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING, "namespace": "headrace"}


class RaySession:
    """Owns the connection, Ray itself where it was started here, and Ray Serve where it was joined."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._has_joined = False
        self._has_started_serve = False

    def join(self, address: str) -> int:
        """Joins a Ray that runs, once all its nodes are what they must be. Returns how many they are.

        Raises `StartError`.
        """
        if not os.environ.get("RAY_AUTH_TOKEN"):
            raise StartError("RAY_AUTH_TOKEN is not set", "export the one that Ray's nodes were started with")
        os.environ.update(ON_NODES)
        import ray

        try:
            address = _the_one(address)
            _knock(address)
            ray.init(address=address, **_COMMON)
        except (OSError, RuntimeError, ValueError) as error:
            raise StartError(
                f"--ray-address {address} cannot be joined: {_first_line(error)}",
                "start Ray on this machine with `headrace ray-env ray start`, with the same RAY_AUTH_TOKEN",
            ) from None
        self._has_joined = True
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        check_reach(self._settings, os.environ, list(nodes.values()))
        self._check_nodes(nodes)
        if _has_serve():
            raise StartError(
                "Ray Serve runs there already, and its settings cannot be changed",
                "end it with `serve shutdown`, then start again",
            )
        return len(nodes)

    def start(self, run_dir: RunDir) -> None:
        """Starts Serve, on a Ray of its own if none was joined."""
        settings = self._settings
        if not self._has_joined:
            num_gpus = settings.most_replicas if settings.device == "cuda" else 0
            start_local_ray(run_dir, num_actors=settings.most_replicas + settings.gateways, num_gpus=num_gpus)
        from ray import serve

        self._has_started_serve = True
        serve.start(
            http_options=serve.HTTPOptions(host=settings.host, port=settings.port),
            proxy_location="EveryNode" if self._has_joined else "HeadOnly",
        )

    def close(self) -> None:
        """Ends a Ray that was started here; leaves a joined one as it was found."""
        import ray
        from ray import serve

        if not ray.is_initialized():
            return
        if self._has_joined and self._has_started_serve:
            serve.shutdown()
        ray.shutdown()

    def _check_nodes(self, nodes: dict[str, str]) -> None:
        question = Question(secrets.token_bytes(32), self._settings.model, self._settings.redis_url)
        needed = needed_facts(node_facts(question))
        answers = _ask(list(nodes), question)
        wrong = []
        for node_id, answer in answers.items():
            if isinstance(answer, str):
                wrong.append(f"node {nodes[node_id]}: cannot be checked: {answer}")
            else:
                wrong += mismatches(nodes[node_id], answer, needed)
        if wrong:
            raise StartError(
                "\n  ".join(wrong),
                f"start each node with `headrace ray-env ray start`, {' and '.join(SECRETS)} being set, "
                "from the same headrace",
            )


def start_local_ray(run_dir: RunDir, *, num_actors: int, num_gpus: int = 0) -> None:
    """A Ray of this process's own on this machine, with room for so many actors. Changes the environment."""
    os.environ.update(ray_environment(run_dir, os.environ))
    import ray

    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, num_actors),
        num_gpus=num_gpus,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        _temp_dir=str(run_dir.ray),
        **_COMMON,
    )


def _ask(node_ids: list[str], question: Question) -> dict[str, Facts | str]:
    """Each node's facts, or why there are none, in one line."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(node_facts)
    asked = {
        node_id: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(
            question
        )
        for node_id in node_ids
    }
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_TIMEOUT_S)
    answers: dict[str, Facts | str] = {}
    for node_id, answer in asked.items():
        try:
            answers[node_id] = ray.get(answer, timeout=0)
        except RayError as error:
            answers[node_id] = _first_line(getattr(error, "cause", None) or error)
    return answers


def _the_one(address: str) -> str:
    """What `auto` stands for. Raises `ValueError` if no Ray runs on this machine, or several do."""
    if address != "auto":
        return address
    named = os.environ.get("RAY_ADDRESS", "auto")
    if named != "auto":
        return named
    from ray._private.services import find_gcs_addresses

    found = sorted(find_gcs_addresses())
    if len(found) != 1:
        raise ValueError(f"several run here, name one: {', '.join(found)}" if found else "none runs here")
    return str(found[0])


def _knock(address: str) -> None:
    """Raises `OSError` if nothing listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), KNOCK_TIMEOUT_S).close()


def _has_serve() -> bool:
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
