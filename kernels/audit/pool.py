"""Compiling processes, as many as there are processors, and the jobs that they share."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import IO

import msgspec

from kernels.audit.job import Answer, Job

REPOSITORY = Path(__file__).parents[2]


class Pool:
    """Owns its processes. One that dies takes its job with it, not the others: a fresh one follows."""

    def __init__(self, num_workers: int) -> None:
        self._threads = ThreadPoolExecutor(num_workers)
        self._workers = [_Worker() for _ in range(num_workers)]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def answers(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """In the order of the jobs."""
        return self._threads.map(self._ask, jobs)

    def close(self) -> None:
        """At once, whatever is being compiled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def _ask(self, job: Job) -> Answer:
        worker = self._idle.get()
        try:
            return worker.ask(job)
        finally:
            self._idle.put(worker)


class _Worker:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        """What the process prints besides answers: read when it has died."""
        self._start_or_kill = Lock()
        self._is_killed = False

    def ask(self, job: Job) -> Answer:
        """Starts the process with its first job, or after the last one ended it."""
        with self._start_or_kill:
            if self._is_killed:
                return Answer([], 0.0, "not compiled: it was ended")
            process = self._process = self._process or _started(self._said)
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(msgspec.json.encode(job) + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if line:
            return msgspec.json.decode(line, type=Answer)
        return Answer([], 0.0, self._last_words(process.wait()))

    def kill(self) -> None:
        """For good; a job that it has is answered as one that its process died of."""
        with self._start_or_kill:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        self._end()
        self._said.close()

    def _last_words(self, status: int) -> str:
        self._end()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"the compiler ended with status {status}: {last}"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _started(said: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-m", "kernels.audit.worker"],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
    )


@contextmanager
def compiling(num_workers: int | None = None) -> Iterator[Pool]:
    pool = Pool(num_workers or os.cpu_count() or 1)
    try:
        yield pool
    finally:
        pool.close()
