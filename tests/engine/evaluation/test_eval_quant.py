"""`headrace eval quant`: figures that are right, the same for the same seeds, and bounds that plants miss."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

from engine.attention_backend import QuantizedWeight, quant_layout
from engine.evaluation import quant
from engine.evaluation.agreement import Spread, draws, first_difference, share_equal
from engine.evaluation.bounds import BOUNDS, Bound, misses
from engine.evaluation.command import evaluation
from engine.evaluation.model import EvaluatedModel
from engine.evaluation.perplexity import read
from engine.evaluation.quant import Plan, compare
from engine.evaluation.text import STORED, read_text, windows
from engine.loading import packed_int4
from engine.loading.source import resolve_model
from engine.philox import uniform
from tests.builders_loading import edit_config
from tests.builders_model import TINY, tiny_source

QUANTIZED = Path(__file__).parents[2] / "data" / "quantized"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(quant, "NUM_PROMPTS", 2)
    monkeypatch.setattr(quant, "OUTPUT_TOKENS", 8)
    monkeypatch.setattr(quant, "WINDOW_TOKENS", 128)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(read_text()[:300], encoding="utf-8")
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(evaluation, ["quant", str(TINY), "--json", *arguments])


def told(result: Result) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


# --- pieces -----------------------------------------------------------------------------------


def test_the_stored_text_is_there_and_old() -> None:
    assert 7_000 < STORED.stat().st_size < 9_000
    assert read_text().startswith("It was the best of times")


def test_windows_lie_side_by_side() -> None:
    assert windows(range(7), 3) == [(0, 1, 2), (3, 4, 5)]
    with pytest.raises(ValueError, match="the text has 2 tokens, at least 3 are needed"):
        windows(range(2), 3)


def test_perplexity_is_of_the_tokens_that_follow() -> None:
    shares = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.1, 0.1, 0.8]])
    reading = read([((2, 0, 0), shares.log())])
    assert reading.perplexity == pytest.approx(exp(-(log(0.5) + log(0.125)) / 2), rel=1e-5)
    assert reading.likeliest == (0, 1)


def test_agreement_counts_positions() -> None:
    assert share_equal([1, 2, 3, 4], [1, 0, 3, 0]) == 0.5
    assert [first_difference([1, 2, 3], other) for other in ([0, 2, 3], [1, 2, 0], [1, 2, 3])] == [0, 2, 3]
    assert Spread.of([0.5, 1.0, 0.0]) == Spread(0.5, 0.0, 1.0)


def test_a_draw_takes_the_number_of_its_seed_and_position() -> None:
    """Of two tokens of even chance, the first by id while the number is at most a half."""
    even = lambda token_ids: torch.zeros(len(token_ids), 2)  # noqa: E731
    drawn = draws(even, [0, 0, 0], [0] * 12, 1.0, seed=5)
    assert drawn == [int(uniform(5, index, 0) > 0.5) for index in range(12)]
    assert len(set(drawn)) == 2


def test_draws_are_of_the_positions_behind_the_prompt() -> None:
    def following(token_ids: Any) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(token_ids) + 1, 100).float()

    assert draws(following, [10, 20], [30, 40, 50], 0.0, seed=0) == [21, 31, 41]


# --- a model beside itself --------------------------------------------------------------------


def plan() -> Plan:
    return Plan(tuple(tiny_source().tokenizer().encode(read_text()[:300])), num_seeds=2, context=1024)


def test_a_model_left_to_itself_draws_what_it_draws_behind_its_own_words() -> None:
    model = EvaluatedModel(tiny_source(), "none", dtype="float32", device="cpu", max_tokens=128)
    answers = quant.ask(model, plan())
    for draw, continuations in answers.continuations.items():
        assert answers.drawn[draw] == [token_id for tokens in continuations for token_id in tokens]
    assert len(answers.drawn) == 1 + 2 + 2
    assert answers.drawn[1.0, 0] != answers.drawn[1.0, 1]


def test_a_file_as_stored_agrees_with_its_dequantised_self(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = compare(resolve_model(str(QUANTIZED / "awq")), plan(), ["stored"], dtype="float32", device="cpu")
    assert (row["perplexity_ratio"], row["greedy_agreement"]) == (1.0, 1.0)
    assert [temperature["agreement"]["least"] for temperature in row["sampled"]] == [1.0] * 3
    assert [temperature["first_difference"]["least"] for temperature in row["sampled"]] == [8.0] * 3
    assert list(misses(row, BOUNDS["stored"])) == []


# --- the command ------------------------------------------------------------------------------


def test_what_holds_its_bounds_exits_0_and_the_figures_are_those_of_the_seeds(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model's words are noise, which any rounding moves: its bounds are its own."""
    monkeypatch.setitem(BOUNDS, "int8", Bound(1.02, 0.9, {0.0: 0.9, 0.7: 0.8, 1.0: 0.6}))
    result = run("--quantization", "int8", "--text", str(text), "--seeds", "2")
    assert result.exit_code == 0, result.output
    answer = told(result)
    assert answer.keys() == {"rows", "failures"}
    assert answer["failures"] == []
    (row,) = answer["rows"]
    assert [sampled["temperature"] for sampled in row["sampled"]] == [0.0, 0.7, 1.0]
    assert told(run("--quantization", "int8", "--text", str(text), "--seeds", "2")) == answer


def wrong_scale(weight: torch.Tensor) -> QuantizedWeight:
    made = quant_layout.quantize_int8(weight)
    return replace(made, scales=made.scales * 1.25)


def swapped_nibbles(weight: torch.Tensor, group: int) -> QuantizedWeight:
    made = quant_layout.quantize_int4(weight, group)
    return replace(made, values=(made.values << 4) | (made.values >> 4))


@pytest.mark.parametrize(
    ("quantization", "name", "plant"),
    [("int8", "quantize_int8", wrong_scale), ("int4", "quantize_int4", swapped_nibbles)],
)
def test_a_plant_misses_every_bound(
    quantization: str,
    name: str,
    plant: Callable[..., QuantizedWeight],
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = type("planted", (), {**vars(quant_layout), name: staticmethod(plant)})
    monkeypatch.setattr("engine.models.weight.quant_layout", planted)
    result = run("--quantization", quantization, "--text", str(text), "--seeds", "1")
    assert result.exit_code == 1
    kinds = " ".join(told(result)["failures"])
    for words in ("perplexity", "greedy agreement", "at temperature 0.7", "at temperature 1.0"):
        assert words in kinds, kinds


def test_numbers_of_awq_in_the_plain_order_are_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve_model(str(QUANTIZED / "awq"))
    name = "model.layers.0.mlp.down_proj.weight"
    expected = np.load(QUANTIZED / "awq" / "dequantized.npz")[name]
    monkeypatch.setattr(packed_int4, "AWQ_ORDER", range(8))
    assert not np.array_equal(dict(source.weights())[name], expected)


def test_a_bound_that_is_missed_is_said_and_exits_1(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, "int8", Bound(0.5, 1.1, dict.fromkeys(quant.TEMPERATURES, 1.1)))
    result = run("--quantization", "int8", "--text", str(text), "--seeds", "1")
    assert result.exit_code == 1
    failures = told(result)["failures"]
    assert len(failures) == 5
    assert "allowed × 0.5" in failures[0]
    assert all(failure in result.stdout for failure in failures)


def test_a_figure_that_is_no_number_misses() -> None:
    row = {"quantization": "int8", "perplexity_ratio": float("nan"), "greedy_agreement": 1.0, "sampled": []}
    assert len(list(misses(row, BOUNDS["int8"]))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quant", "tape:"], "tape: is a tape: it has no weights"),
        (["quant", "/nowhere"], "was not found"),
        (["quant", str(TINY), "--text", "/nowhere.txt"], "/nowhere.txt cannot be read"),
        (
            ["quant", str(TINY), "--text", str(TINY / "config.json"), "--quantization", "stored"],
            "no quantised",
        ),
    ],
)
def test_what_cannot_run_is_one_line_and_exits_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(evaluation, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_model_is_not_read_beyond_its_context(tmp_path: Path, text: Path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    token_ids = tuple(range(200))
    assert Plan(token_ids, 1, context=60).window_tokens == 60
    assert Plan(token_ids, 1, context=1024).window_tokens == 128
    edit_config(folder, max_position_embeddings=40)
    result = CliRunner().invoke(evaluation, ["quant", str(folder), "--text", str(text)])
    assert result.exit_code == 2
    assert "context has 40 tokens, at least 56 are needed" in result.stderr


@pytest.mark.parametrize(("value", "told"), [(np.nan, "nan"), (1e7, "inf")])
def test_a_model_that_says_nothing_exits_2(value: float, told: str, tmp_path: Path, text: Path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], value)
    save_file(tensors, folder / "model.safetensors")
    result = CliRunner().invoke(evaluation, ["quant", str(folder), "--text", str(text)])
    assert result.exit_code == 2
    assert f"the model's perplexity is {told}" in result.stderr


def test_a_model_that_fails_on_its_own_words_exits_2(tmp_path: Path, text: Path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    tensors = load_file(folder / "model.safetensors")
    read_ids = tiny_source().tokenizer().encode(text.read_text())
    embedding = np.full_like(tensors["model.embed_tokens.weight"], np.nan)
    embedding[read_ids] = tensors["model.embed_tokens.weight"][read_ids]
    save_file(tensors | {"model.embed_tokens.weight": embedding}, folder / "model.safetensors")
    result = CliRunner().invoke(evaluation, ["quant", str(folder), "--text", str(text)])
    assert result.exit_code == 2
    assert "the model's logits are no finite numbers" in result.stderr


def test_a_gpu_that_is_not_there_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("--device", "cuda")
    assert result.exit_code == 2
    assert "--device cuda needs a GPU" in result.stderr


def test_a_text_that_is_too_short_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("short")
    result = run("--text", str(path))
    assert result.exit_code == 2
    assert "at least 48 are needed" in result.stderr
