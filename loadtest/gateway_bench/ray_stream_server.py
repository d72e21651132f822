"""Serves `ray_stream_app.py` on a Ray of its own, started as `headrace serve` starts its.

`python -m loadtest.gateway_bench.ray_stream_server PORT STATE_DIR STEP_MS REPLICAS`
"""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from cluster.ray_session import start_local_ray
from cluster.run_dir import RunDir
from cluster.supervisor import ASKS_TO_STOP, adopt_orphans, supervise, sweep_descendants
from loadtest.server_process import READY

_POLL_S = 0.1


def _serve(run_dir: RunDir, port: int, step_ms: float, num_replicas: int) -> None:
    """Until it is asked to stop."""
    # Before Serve is imported, which reads the environment.
    start_local_ray(run_dir, num_actors=num_replicas + 1)
    import ray
    from ray import serve

    from loadtest.gateway_bench.ray_stream_app import build

    try:
        serve.start(http_options=serve.HTTPOptions(host="127.0.0.1", port=port), proxy_location="HeadOnly")
        serve.run(build(step_ms / 1000, num_replicas))
        _await_ready(port)
        print(READY, flush=True)
        signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()


def _await_ready(port: int) -> None:
    """Serve says that it is ready before its proxy has heard of it."""
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2):
            return
        time.sleep(_POLL_S)


def main() -> None:
    if "--supervised" not in sys.argv:
        command = [sys.executable, "-m", "loadtest.gateway_bench.ray_stream_server", *sys.argv[1:]]
        sys.exit(supervise([*command, "--supervised"], os.environ))
    adopt_orphans()
    for number in ASKS_TO_STOP:
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
    port, state_dir, step_ms, num_replicas = sys.argv[1:5]
    run_dir = RunDir.claim(Path(state_dir))
    try:
        _serve(run_dir, int(port), float(step_ms), int(num_replicas))
    except KeyboardInterrupt:
        pass
    finally:
        sweep_descendants(grace_s=2)
        run_dir.release()


if __name__ == "__main__":
    main()
