"""A safetensors file's tensors cover its data, each byte once, wherever each of them begins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file

from engine.loading.errors import ModelError
from engine.loading.safetensors_file import SafetensorsFile

DATA = bytes(range(32))


def write(path: Path, places: dict[str, tuple[int, int]], data: bytes = DATA, padding: int = 0) -> Path:
    """Flat tensors of 16-bit numbers at these byte ranges of the data; the header is padded with spaces."""
    entries = {
        name: {"dtype": "F16", "shape": [(end - begin) // 2], "data_offsets": [begin, end]}
        for name, (begin, end) in places.items()
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8 + padding)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": (0, 18), "b": (16, 32)}, "tensors 'a' and 'b' overlap at bytes 16-18"),
        ({"b": (16, 32), "a": (0, 18)}, "tensors 'a' and 'b' overlap at bytes 16-18"),
        ({"a": (0, 32), "b": (0, 32)}, "tensors 'a' and 'b' overlap at bytes 0-32"),
        ({"a": (0, 32), "b": (8, 16)}, "tensors 'a' and 'b' overlap at bytes 8-16"),
        ({"a": (0, 16), "b": (18, 32)}, "bytes 16-18 belong to no tensor"),
        ({"a": (2, 32)}, "bytes 0-2 belong to no tensor"),
        ({"a": (0, 30)}, "bytes 30-32 belong to no tensor"),
        ({}, "bytes 0-32 belong to no tensor"),
        ({"a": (0, 34)}, "tensor 'a' of shape [17] at bytes 0-34 of 32"),
        ({"a": (-2, 32)}, "tensor 'a' of shape [17] at bytes -2-32 of 32"),
    ],
)
def test_bytes_of_two_tensors_or_of_none_are_refused(
    tmp_path: Path, places: dict[str, tuple[int, int]], message: str
) -> None:
    path = write(tmp_path / "m.safetensors", places)
    with pytest.raises(ModelError) as caught:
        SafetensorsFile.open(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_order_in_the_header_and_alignment_are_free(tmp_path: Path, padding: int) -> None:
    path = write(
        tmp_path / "m.safetensors", {"last": (20, 32), "first": (0, 6), "mid": (6, 20)}, b"", padding
    )
    path.write_bytes(path.read_bytes() + DATA)
    opened = SafetensorsFile.open(path)
    for name, (begin, end) in {"last": (20, 32), "first": (0, 6), "mid": (6, 20)}.items():
        expected = np.frombuffer(DATA[begin:end], np.float16).astype(np.float32)
        assert np.array_equal(opened.tensor(name), expected), name


@given(
    places=st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(st.sampled_from(range(0, 34, 4)), st.sampled_from(range(0, 34, 4))).filter(
            lambda place: place[0] < place[1]
        ),
        min_size=1,
    )
)
def test_what_is_refused_is_what_the_formats_own_reader_refuses(
    tmp_path_factory: pytest.TempPathFactory, places: dict[str, tuple[int, int]]
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "places.safetensors", places)
    try:
        load_file(path)
    except SafetensorError:
        with pytest.raises(ModelError):
            SafetensorsFile.open(path)
    else:
        assert SafetensorsFile.open(path).shapes().keys() == places.keys()
