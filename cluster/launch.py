"""Starts a cluster stage by stage, waits, and takes it down. Run by the supervisor as a child process.

Stages: environment, nodes (where a Ray is joined), Redis, Ray, weights, KV pool, warm-up, golden, ready.
Those up to Ray are this process's; replicas report the next four; ready is the gateway's own `/ready`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
import traceback
from contextlib import closing
from types import FrameType

from rich.console import Console

from cluster.autoscaling.cold_start import LOADING
from cluster.autoscaling.opening import open_scaling
from cluster.autoscaling.runner import ScalingRunner
from cluster.golden import GoldenPrompt
from cluster.greeting import front_address, greet
from cluster.output import own_console, send_output_to, waiting_for
from cluster.preflight import (
    check_device,
    check_memory,
    check_port,
    check_state_dir,
    open_golden,
    open_model,
    open_public_prefixes,
    plan_engine,
)
from cluster.ray_session import RaySession
from cluster.record_opening import open_record
from cluster.redis_check import check_redis
from cluster.redis_server import RedisServer, RedisServerError
from cluster.rollout.check import text_rules
from cluster.rollout.opening import open_rollouts
from cluster.rollout.runner import RolloutRunner
from cluster.run_dir import RunDir, RunDirBusy
from cluster.serve_command import SETTINGS_VARIABLE
from cluster.settings import ServeSettings, root_secret
from cluster.spec import ClusterSpec, EnginePlan
from cluster.stages import Stages, StartError
from cluster.start_reports import StageReport, StartReports
from cluster.start_watch import StartWatch, answers
from cluster.supervisor import ASKS_TO_STOP, adopt_orphans, sweep_descendants
from engine.loading.source import ModelSource
from tenants.bootstrap import BootstrapError, KeyFiles
from tenants.store import StoreUnavailable

POLL_S = 0.1


class Interrupted(KeyboardInterrupt):
    """The operator asked for a stop while the cluster was starting. No `except Exception` hides it."""


class Launcher:
    """Owns the run directory, Redis and Ray, from `start` to `stop`."""

    def __init__(self, settings: ServeSettings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self.stages = Stages(console, time.monotonic)
        self._run_dir: RunDir | None = None
        self._redis: RedisServer | None = None
        self._ray = RaySession(settings)
        self._keys = KeyFiles(None, None)
        self._is_deployed = False
        self._runners: tuple[RolloutRunner | ScalingRunner, ...] = ()
        self._is_starting = True
        self.is_asked_to_stop = False

    def ask_to_stop(self) -> None:
        """From a signal handler. Raises `Interrupted` into a start; anything else goes on to its end."""
        was_asked, self.is_asked_to_stop = self.is_asked_to_stop, True
        if self._is_starting and not was_asked:
            raise Interrupted

    def start(self) -> None:
        """Raises `StartError`, or `Interrupted` at the first `ask_to_stop` before it has ended."""
        try:
            self._start()
        finally:
            self._is_starting = False

    def _start(self) -> None:
        settings = self._settings
        with self.stages.stage("environment") as detail:
            check_port(settings.host, settings.port)
            check_state_dir(settings.state_dir)
            source = open_model(settings)
            plan = plan_engine(settings, source)
            if settings.ray_address is None:
                check_device(settings.device, settings.most_replicas)
                check_memory(settings, source, plan)
            self._run_dir = self._claim_run_dir()
            send_output_to(self._run_dir.path / "launch.log")
            root_secret(settings.state_dir)
            golden, rules = open_golden(settings), text_rules(source)
            public_prefixes = open_public_prefixes(settings, source)
            detail(f"{source.served_name}, {plan.dtype}, context {plan.config.max_model_len}")
        if plan.warning:
            self._warn(plan.warning)
        num_nodes = self._join_ray()
        with self.stages.stage("Redis") as detail:
            redis_url = self._open_redis()
            detail("started" if self._redis else "joined")
        spec = self._spec(source, plan, golden, public_prefixes, redis_url, num_nodes)
        with self.stages.stage("Ray"):
            self._ray.start(self._run_dir)
            self._deploy(spec)
        passed = self._await_ready(spec)
        self._console.print(f"Ready after {self.stages.elapsed_s:.1f} s.")
        greet(self._console, settings, spec.served_name, self._keys)
        rollouts = open_rollouts(spec, rules, self._console)
        self._runners = rollouts, open_scaling(rollouts, passed, self._console)

    def _warn(self, warning: str) -> None:
        self._console.print(f"  [yellow]warning: {warning}[/yellow]", soft_wrap=True)

    def _claim_run_dir(self) -> RunDir:
        try:
            return RunDir.claim(self._settings.state_dir)
        except RunDirBusy:
            raise StartError(
                f"another cluster runs on --state-dir {self._settings.state_dir}",
                "stop it, or choose another --state-dir",
            ) from None
        except OSError as error:
            raise StartError(
                f"the run directory cannot be made: {error}", "remove what is in its way"
            ) from None

    def _open_redis(self) -> str:
        """Starts Redis or joins the given one; makes the demo and admin keys where they are missing."""
        settings = self._settings
        assert self._run_dir is not None
        try:
            if settings.redis_url is None:
                self._redis = RedisServer.start(settings.state_dir, self._run_dir.path)
                url = self._redis.url
            else:
                url = settings.redis_url
                for warning in check_redis(url).warnings:
                    self._warn(warning)
            self._keys = asyncio.run(open_record(url, settings.state_dir))
        except (RedisServerError, StoreUnavailable) as error:
            raise StartError(str(error), "start Redis ≥ 6.2 there, or leave --redis-url away") from None
        except BootstrapError as error:
            raise StartError(str(error), "use the HEADRACE_SECRET or --state-dir of then") from None
        return url

    def _spec(
        self,
        source: ModelSource,
        engine: EnginePlan,
        golden: tuple[GoldenPrompt, ...],
        public_prefixes: tuple[tuple[int, ...], ...],
        redis_url: str,
        num_nodes: int,
    ) -> ClusterSpec:
        assert self._run_dir is not None
        settings = self._settings.model_copy(update={"state_dir": self._settings.state_dir.resolve()})
        return ClusterSpec(
            settings=settings,
            engine=engine,
            served_name=settings.served_model_name or source.served_name,
            redis_url=redis_url,
            cluster_id=secrets.token_hex(8),
            run_path=self._run_dir.path,
            threads_per_replica=max(1, (os.cpu_count() or 1) // -(-settings.most_replicas // num_nodes)),
            num_nodes=num_nodes,
            revision=source.config.revision,
            golden=golden,
            public_prefixes=public_prefixes,
        )

    def _join_ray(self) -> int:
        """The number of Ray's nodes: 1 where it will be started here."""
        if (address := self._settings.ray_address) is None:
            return 1
        with self.stages.stage("nodes") as detail:
            num_nodes = self._ray.join(address)
            detail(f"{num_nodes} joined")
        return num_nodes

    def _deploy(self, spec: ClusterSpec) -> None:
        from ray import serve

        from cluster.application import gateways, pool

        targets = [pool(spec, spec.settings.first_replicas), gateways(spec)]
        serve.run_many(targets, wait_for_applications_running=False)
        self._is_deployed = True

    def _await_ready(self, spec: ClusterSpec) -> list[StageReport]:
        """The stages that replicas have passed."""
        from cluster.serve_control import deploy_failure

        address = front_address(self._settings.host, self._settings.port)
        with closing(StartReports(spec.redis_url, spec.reports_id)) as reports:
            watch = StartWatch(self.stages, reports, deploy_failure, time.monotonic, self._pause)
            stages = LOADING[-1:] if spec.settings.model.startswith("tape:") else LOADING
            watch.await_replicas(stages, spec.settings.first_replicas)
            watch.await_ready(lambda: answers(f"{address}/ready"))
        return watch.passed

    def _pause(self) -> None:
        """Between two looks. Ray may have caught the `Interrupted` that was raised into it."""
        time.sleep(POLL_S)
        if self.is_asked_to_stop:
            raise Interrupted

    def check(self) -> None:
        """Goes on with rollouts and scaling, and tells, once, if Redis has ended by itself."""
        for runner in self._runners:
            runner.tick()
        if self._redis is not None and not self._redis.is_running:
            self._console.print(
                "[bold red]Redis has ended[/bold red]; tenants are served as their tier says until a restart"
            )
            self._redis = None

    def stop(self) -> None:
        """Drains, then takes everything down that `start` brought up. Safe after a failed start."""
        for runner in self._runners:
            runner.close()
        if "ray" in sys.modules:
            self._stop_ray()
        if self._redis is not None:
            self._redis.stop()
        sweep_descendants(grace_s=2)
        if self._run_dir is not None:
            self._run_dir.release()

    def _stop_ray(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        if self._is_deployed:
            from cluster.application import shut_down

            limit_s = self._settings.drain_limit_s
            with waiting_for(self._console, "draining"):
                num_cut = asyncio.run(shut_down(limit_s))
            if num_cut:
                self._console.print(f"{num_cut} request(s) were cut off after {limit_s:g} s")
        self._ray.close()


def _fail(console: Console, stage: str, error: StartError) -> int:
    console.print(f"[bold red]failed[/bold red] in stage {stage}: ", end="")
    console.print(f"{error.message}\n  remedy: {error.remedy}", markup=False, soft_wrap=True)
    return 2


def main() -> int:
    """Exit status: 0 after a stop that was asked for, 2 if the start failed."""
    adopt_orphans()
    settings = ServeSettings.model_validate_json(os.environ.pop(SETTINGS_VARIABLE))
    console = own_console()
    launcher = Launcher(settings, console)

    def on_signal(number: int, frame: FrameType | None) -> None:
        launcher.ask_to_stop()

    for number in ASKS_TO_STOP:
        signal.signal(number, on_signal)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_STOP)
        launcher.start()
        while not launcher.is_asked_to_stop:
            time.sleep(POLL_S)
            launcher.check()
        return 0
    except Interrupted:
        console.print("stopped while starting")
        return 0
    except StartError as error:
        return _fail(console, launcher.stages.current, error)
    except Exception as error:
        traceback.print_exc()
        reason = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {reason[-1][:300]}"
        run = settings.state_dir / "run"
        remedy = f"see {run}/launch.log and {run}/ray/session_latest/logs"
        return _fail(console, launcher.stages.current, StartError(message, remedy))
    finally:
        launcher.stop()


if __name__ == "__main__":
    sys.exit(main())
