"""What is known to fail before Ray starts: one line that says what is wrong, one that says what to do."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cluster.golden import GoldenPrompt
from cluster.preflight import (
    CLUSTER_OVERHEAD_BYTES,
    REPLICA_OVERHEAD_BYTES,
    check_device,
    check_memory,
    check_port,
    check_state_dir,
    open_golden,
    open_model,
    plan_engine,
)
from cluster.settings import ServeSettings
from cluster.spec import EnginePlan
from cluster.stages import StartError
from engine.config import BLOCK_SIZE, EngineConfig
from engine.loading.source import ModelSource, resolve_model
from engine.memory_plan import activation_bytes
from tests.builders_model import TINY, tiny_source
from tests.data.families.families import FAMILIES, write_folder

BLOCK_BYTES = 2 * 30 * 3 * BLOCK_SIZE * 64 * 4
"""A block of the tape's model in float32: K and V, 30 layers, 3 heads of 64."""
MIB = 2**20
ENGINE = EnginePlan(EngineConfig(num_blocks=100, max_model_len=1000), "float32", "float32")


def settings(**given: Any) -> ServeSettings:
    return ServeSettings(**{"model": "tape:", "dtype": "float32"} | given)


def plan(**given: Any) -> EnginePlan:
    return plan_engine(settings(**given), open_model(settings(**given)))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


class TestPort:
    def test_one_that_is_taken_is_named_with_the_way_out(self, taken: int) -> None:
        with pytest.raises(
            StartError, match=f"--host 127.0.0.1 --port {taken} cannot be opened: Address already in use"
        ) as caught:
            check_port("127.0.0.1", taken)
        assert "--port" in caught.value.remedy

    def test_one_that_was_just_left_is_free(self) -> None:
        """Its last connection is in TIME_WAIT on our side: a restart must not wait for that."""
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            host, port = listener.getsockname()
            with socket.create_connection((host, port)) as client:
                accepted, _ = listener.accept()
                accepted.close()
                assert client.recv(1) == b""
        check_port(host, port)

    @pytest.mark.parametrize("host", ["203.0.113.1", "::2", "\udcff"])
    def test_a_host_that_is_not_ours_is_named(self, host: str) -> None:
        with pytest.raises(StartError, match=f"--host {host} --port 8000 cannot be opened: "):
            check_port(host, 8000)

    def test_a_machine_without_ipv6_is_told_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(family: int) -> None:
            raise OSError(97, "Address family not supported by protocol")

        monkeypatch.setattr(socket, "socket", refuse)
        with pytest.raises(StartError, match=r"--host ::1 .*: Address family not supported"):
            check_port("::1", 8000)


class TestModel:
    def test_one_that_is_not_there_names_the_flag_and_the_remedy(self) -> None:
        with pytest.raises(StartError, match=r"--model no\.gguf: model 'no\.gguf' was not found") as caught:
            open_model(settings(model="no.gguf"))
        assert "GGUF file" in caught.value.remedy

    def test_a_folder_and_a_tape_are_opened(self) -> None:
        assert open_model(settings(model=str(TINY))).tape is None
        assert open_model(settings()).served_name == "tape"

    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("chat_template.jinja", b"{% for"),
            ("chat_template.jinja", b"\xff\xfe{{"),
            ("tokenizer.json", b'{"a":' * 1000),
        ],
    )
    def test_what_only_gateways_read_of_it_is_checked_too(
        self, tmp_path: Path, file: str, content: bytes
    ) -> None:
        folder = tmp_path / "model"
        shutil.copytree(TINY, folder)
        (folder / file).write_bytes(content)
        with pytest.raises(StartError, match=f"--model {folder}"):
            open_model(settings(model=str(folder)))


class TestEngine:
    def test_its_pool_is_what_the_memory_holds_and_its_sizes_are_the_settings(self) -> None:
        config = EngineConfig(num_blocks=600, max_model_len=8192, max_num_seqs=7, max_num_batched_tokens=99)
        given = plan(kv_memory=600 * BLOCK_BYTES + 1, max_num_seqs=7, max_num_batched_tokens=99)
        assert given == EnginePlan(config, "float32", "float32")

    def test_a_smaller_dtype_makes_more_blocks(self) -> None:
        assert plan(kv_memory=600 * BLOCK_BYTES, dtype="bfloat16").config.num_blocks == 1200

    def test_a_smaller_kv_dtype_makes_more_blocks_of_the_same_weights(self) -> None:
        narrow = plan(kv_memory=600 * BLOCK_BYTES, kv_cache_dtype="bfloat16")
        assert (narrow.config.num_blocks, narrow.dtype, narrow.kv_dtype) == (1200, "float32", "bfloat16")
        wide = plan(kv_memory=600 * BLOCK_BYTES, dtype="bfloat16", kv_cache_dtype="float32")
        assert (wide.config.num_blocks, wide.dtype, wide.kv_dtype) == (600, "bfloat16", "float32")

    def test_the_cache_follows_the_weights_unless_told_otherwise(self) -> None:
        assert plan(dtype="bfloat16").kv_dtype == "bfloat16"
        assert plan(dtype="float32").kv_dtype == "float32"

    def test_a_quantization_that_the_model_cannot_have_is_refused(self) -> None:
        with pytest.raises(StartError, match="holds no quantised weights") as caught:
            plan_engine(settings(quantization="stored"), tiny_source())
        assert caught.value.remedy == "use --quantization int8, int4 or none"
        assert plan_engine(settings(quantization="int4"), tiny_source()).dtype == "float32"

    def test_reference_mode_is_float32(self) -> None:
        assert plan(dtype="auto", deterministic=True).dtype == "float32"

    def test_a_context_that_just_fits_the_pool_is_left_alone(self) -> None:
        fits = plan(kv_memory=513 * BLOCK_BYTES)
        assert (fits.config.max_model_len, fits.warning) == (512 * BLOCK_SIZE, None)

    def test_one_that_does_not_is_lowered_with_a_warning(self) -> None:
        lowered = plan(kv_memory=512 * BLOCK_BYTES)
        assert lowered.config.max_model_len == 511 * BLOCK_SIZE == 8176
        assert lowered.warning == "context lowered from 8192 to 8176 tokens, which --kv-memory holds"

    def test_an_explicit_one_that_does_not_is_refused_and_each_way_out_works(self) -> None:
        with pytest.raises(
            StartError, match=r"--max-model-len 5000 does not fit: .* holds 4784 tok"
        ) as caught:
            plan(kv_memory=300 * BLOCK_BYTES, max_model_len=5000)
        enough = (313 + 1) * BLOCK_BYTES
        assert caught.value.remedy == f"use --max-model-len 4784 or less, or --kv-memory {enough} or more"
        assert plan(kv_memory=300 * BLOCK_BYTES, max_model_len=4784).config.max_model_len == 4784
        assert plan(kv_memory=enough, max_model_len=5000).config.max_model_len == 5000
        with pytest.raises(StartError, match="does not fit"):
            plan(kv_memory=enough - 1, max_model_len=5000)

    def test_one_beyond_the_trained_context_is_refused(self) -> None:
        with pytest.raises(StartError, match="9000 tokens are beyond the 8192") as caught:
            plan(max_model_len=9000)
        assert caught.value.remedy.startswith(
            "give --max-model-len 8192 or less, or --allow-untrained-context"
        )

    def test_one_beyond_it_is_served_when_that_is_asked_for(self) -> None:
        served = plan(max_model_len=9000, allow_untrained_context=True)
        assert (served.config.max_model_len, served.warning) == (9000, None)

    def test_a_sliding_window_lowers_the_context_with_a_warning(self, tmp_path: Path) -> None:
        source = resolve_model(str(write_folder(FAMILIES["mistral"], tmp_path / "mistral")))
        lowered = plan_engine(settings(), source)
        assert lowered.config.max_model_len == 48
        assert lowered.warning == "context lowered from 256 to 48 tokens, the model's sliding window"
        assert plan_engine(settings(max_model_len=32), source).warning is None

    def test_memory_for_no_block_is_refused_with_what_is_enough(self) -> None:
        with pytest.raises(StartError, match="hold 1 blocks") as caught:
            plan(kv_memory=2 * BLOCK_BYTES - 1)
        assert caught.value.remedy == f"give at least --kv-memory {2 * BLOCK_BYTES}"
        assert plan(kv_memory=2 * BLOCK_BYTES).config.max_model_len == BLOCK_SIZE


class TestMemory:
    @pytest.fixture
    def free(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """Free memory as the test sets it."""
        memory = SimpleNamespace(available=0)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        return memory

    def needed(
        self, source: ModelSource, replicas: int, kv_memory: int, *, deterministic: bool = False
    ) -> int:
        steps = activation_bytes(
            source.config, ENGINE.config, "float32", "float32", deterministic=deterministic
        )
        each = source.weights_bytes("float32") + kv_memory + steps + REPLICA_OVERHEAD_BYTES
        return replicas * each + CLUSTER_OVERHEAD_BYTES

    def test_it_must_hold_every_replica_and_the_cluster(self, free: SimpleNamespace) -> None:
        source, asked = tiny_source(), settings(replicas=3, kv_memory=64 * MIB)
        free.available = self.needed(source, 3, 64 * MIB)
        check_memory(asked, source, ENGINE)
        free.available -= 1
        with pytest.raises(StartError, match=r"3 replica\(s\) need \d\.\d GiB of memory and") as caught:
            check_memory(asked, source, ENGINE)
        assert "--kv-memory or --replicas" in caught.value.remedy

    def test_reference_mode_takes_more(self, free: SimpleNamespace) -> None:
        source, asked = tiny_source(), settings(deterministic=True, kv_memory=64 * MIB)
        free.available = self.needed(source, 1, 64 * MIB, deterministic=True)
        check_memory(asked, source, ENGINE)
        free.available -= 1
        with pytest.raises(StartError):
            check_memory(asked, source, ENGINE)

    def test_a_tape_takes_no_kv(self, free: SimpleNamespace) -> None:
        free.available = REPLICA_OVERHEAD_BYTES + CLUSTER_OVERHEAD_BYTES
        check_memory(settings(), open_model(settings()), ENGINE)

    def test_a_gpu_s_memory_is_not_this_machine_s(self, free: SimpleNamespace) -> None:
        check_memory(settings(device="cuda"), tiny_source(), ENGINE)


class TestStateDirectory:
    def test_it_is_made_private(self, tmp_path: Path) -> None:
        check_state_dir(tmp_path / "a" / "state")
        assert (tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700

    def test_one_that_is_there_is_taken_as_it_is(self, tmp_path: Path) -> None:
        check_state_dir(tmp_path)

    def test_a_file_in_its_place_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "state").touch()
        with pytest.raises(StartError, match=f"--state-dir {tmp_path / 'state'} cannot be made: File exists"):
            check_state_dir(tmp_path / "state")

    def test_one_that_cannot_be_written_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK)
        with pytest.raises(StartError, match=f"--state-dir {tmp_path} is not writable"):
            check_state_dir(tmp_path)


def test_a_gpu_for_each_replica_is_asked_for_before_ray_starts(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    check_device("cuda", 2, tmp_path)
    check_device("cpu", 9, tmp_path)
    with pytest.raises(StartError, match=r"needs 3 GPU\(s\), one a replica, and this machine has 2"):
        check_device("cuda", 3, tmp_path)


class TestGolden:
    def test_a_file_gives_its_prompts_and_none_is_fine(self, tmp_path: Path) -> None:
        path = tmp_path / "golden.jsonl"
        path.write_text('{"prompt": "x"}\n')
        assert open_golden(settings(golden=path)) == (GoldenPrompt(prompt="x"),)
        assert open_golden(settings()) == ()

    def test_a_bad_file_is_named_with_its_flag(self, tmp_path: Path) -> None:
        path = tmp_path / "golden.jsonl"
        path.write_text("{}\n")
        with pytest.raises(StartError, match=r"--golden .*golden\.jsonl line 1: give one of prompt"):
            open_golden(settings(golden=path))
