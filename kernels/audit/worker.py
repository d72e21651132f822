"""The process that compiles: `python -m kernels.audit.worker`, a job a line in, an answer a line out.

Of its own because Triton decides at its import whether it interprets, because a stand-in takes the driver's
place in it, and because a compiler can end its process with an assertion.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

from kernels.audit.bench_tensors import BenchTensors
from kernels.audit.calls import CALLS
from kernels.audit.facts import facts_of
from kernels.audit.job import Answer, Job
from kernels.audit.stand_in import compiled_by


def answer(job: Job) -> Answer:
    start = time.perf_counter()
    try:
        call = CALLS[job.op](BenchTensors("meta"), job.arch, **job.arguments)
        compiled = compiled_by(call, job.arch)
        facts = [facts_of(one, job.arch) for one in compiled]
    except Exception as error:  # whatever a compiler may raise, it is this job's answer
        told = str(error).strip().splitlines() or [""]
        return Answer([], time.perf_counter() - start, f"{type(error).__name__}: {told[-1]}")
    return Answer(facts, time.perf_counter() - start)


def main() -> None:
    # What a compiler prints must not stand between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(answer(msgspec.json.decode(line, type=Job))) + b"\n")


if __name__ == "__main__":
    main()
