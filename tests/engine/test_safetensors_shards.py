"""Weights in several files: they are one model, and whatever their index gets wrong is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.loading.source import resolve_model
from tests.builders_loading import refusal
from tests.builders_model import TINY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def shard(folder: Path) -> dict[str, str]:
    """The folder's weights in two files and an index. Returns the index's map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    return {name: file for file, held in files.items() for name in held}


def write_index(folder: Path, weight_map: dict[str, Any]) -> Path:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_are_one_model(folder: Path) -> None:
    whole = resolve_model(str(folder))
    write_index(folder, shard(folder))
    sharded = resolve_model(str(folder))
    weights_of_whole = dict(resolve_model(str(TINY)).weights())
    for name, weight in sharded.weights():
        assert np.array_equal(weights_of_whole.pop(name), weight), name
    assert not weights_of_whole
    assert sharded.weights_bytes("float32") == whole.weights_bytes("float32")


def test_another_shard_is_another_revision(folder: Path) -> None:
    write_index(folder, shard(folder))
    before = resolve_model(str(folder)).config.revision
    path = folder / "model-00002-of-00002.safetensors"
    save_file({name: weight * np.float32(1.5) for name, weight in load_file(path).items()}, path)
    assert resolve_model(str(folder)).config.revision != before


def test_one_whole_file_goes_before_an_index(folder: Path) -> None:
    write_index(folder, {"model.norm.weight": "gone.safetensors"})
    names = {name for name, _ in resolve_model(str(folder)).weights()}
    assert names == {name for name, _ in resolve_model(str(TINY)).weights()}


def test_a_shard_that_is_not_there_is_named(folder: Path) -> None:
    write_index(folder, shard(folder))
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../model-00001-of-00002.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..",
        "",
        "model.bin",
        "a\0.safetensors/",
    ],
)
def test_a_shard_outside_the_folder_is_not_opened(folder: Path, name: str) -> None:
    weight_map = shard(folder)
    write_index(folder, weight_map | {"model.norm.weight": name})
    assert "is not the name of a safetensors file" in refusal(folder)


def test_a_tensor_in_the_wrong_shard_is_named(folder: Path) -> None:
    weight_map = shard(folder)
    other = {
        "model-00001-of-00002.safetensors": "model-00002-of-00002.safetensors",
        "model-00002-of-00002.safetensors": "model-00001-of-00002.safetensors",
    }
    moved = weight_map | {"model.norm.weight": other[weight_map["model.norm.weight"]]}
    message = f"tensor 'model.norm.weight' is not in '{moved['model.norm.weight']}'"
    assert message in refusal(write_index(folder, moved))


def test_a_tensor_that_the_index_does_not_know_is_named(folder: Path) -> None:
    weight_map = shard(folder)
    file = weight_map.pop("model.norm.weight")
    message = f"tensor 'model.norm.weight' is in '{file}', where model.safetensors.index.json does not say so"
    assert message in refusal(write_index(folder, weight_map))


@pytest.mark.parametrize("index", ["{}", "[]", "{", '{"weight_map": {"a": 5}}', '{"weight_map": "b"}', ""])
def test_an_index_that_is_none_is_refused(folder: Path, index: str) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(folder)


def test_an_index_of_nothing_is_refused(folder: Path) -> None:
    shard(folder)
    assert "0 tensors in the file" in refusal(write_index(folder, {}))


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in refusal(folder)
