"""The tape: what it plays, how it checks paging, and what a wrong tape is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.request import SamplingParams, TokenLogprobs
from engine.step import ScheduledRequest, StepPlan
from engine.tape import END_OF_TURN_ID, TapeExecutor, TapeSpec, parse_tape_spec, prompt_hash

PROMPT = (1, 2, 3, 4, 5)
TAPE = TapeSpec({prompt_hash(PROMPT): (10, 11)})


def make_executor(spec: TapeSpec = TAPE, **arguments) -> TapeExecutor:
    return TapeExecutor(spec, num_blocks=8, block_size=4, **arguments)


def play(
    executor: TapeExecutor,
    token_ids: tuple[int, ...],
    block_table: tuple[int, ...],
    *,
    computed: int = 0,
    output_index: int | None = None,
    copies: tuple[tuple[int, int], ...] = (),
) -> int | None:
    """One step of one request."""
    request = ScheduledRequest(
        "r", token_ids, computed, block_table, output_index, SamplingParams(max_tokens=9)
    )
    (token_id,) = executor.submit(StepPlan(1, (request,), copies)).result().token_ids
    return token_id


def test_a_prompt_is_answered_from_its_tape_and_then_ends() -> None:
    executor = make_executor()
    assert play(executor, PROMPT, (3, 5), output_index=0) == 10
    assert play(executor, (10,), (3, 5), computed=5, output_index=1) == 11
    assert play(executor, (11,), (3, 5), computed=6, output_index=2) == END_OF_TURN_ID


def test_a_chunk_that_does_not_reach_the_end_brings_nothing() -> None:
    executor = make_executor()
    assert play(executor, PROMPT[:3], (3,)) is None
    assert play(executor, PROMPT[3:], (3, 5), computed=3, output_index=0) == 10


def test_a_wrong_block_table_plays_wrong_tokens() -> None:
    executor = make_executor()
    play(executor, PROMPT, (3, 5), output_index=0)
    play(executor, (9, 9, 9, 9), (4,), output_index=0)
    assert play(executor, (10,), (4, 5), computed=5, output_index=1) == END_OF_TURN_ID


def test_an_overwritten_block_plays_wrong_tokens() -> None:
    executor = make_executor()
    play(executor, PROMPT, (3, 5), output_index=0)
    play(executor, (9,), (3,), output_index=0)
    assert play(executor, (10,), (3, 5), computed=5, output_index=1) == END_OF_TURN_ID


@pytest.mark.parametrize("block_table", [(4, 5), (3,)])
def test_a_slot_that_was_never_written_is_an_error(block_table: tuple[int, ...]) -> None:
    executor = make_executor()
    play(executor, PROMPT, (3, 5), output_index=0)
    with pytest.raises((ValueError, IndexError)):
        play(executor, (10,), block_table, computed=5, output_index=1)


def test_copies_are_made_before_anything_is_written() -> None:
    executor = make_executor()
    play(executor, PROMPT, (3, 5), output_index=0)
    assert play(executor, (10,), (3, 6), computed=5, output_index=1, copies=((5, 6),)) == 11


def test_a_copy_is_a_block_of_its_own() -> None:
    executor = make_executor(TapeSpec({"*": (10, 11, 12)}))
    play(executor, PROMPT, (3, 5), output_index=0)
    play(executor, (10,), (3, 5), computed=5, output_index=1)
    play(executor, (99,), (3, 6), computed=5, copies=((5, 6),))
    assert play(executor, (11,), (3, 5), computed=6, output_index=2) == 12


def test_outputs_that_it_did_not_play_end_it() -> None:
    executor = make_executor(TapeSpec({"*": (10, 11, 12)}))
    play(executor, PROMPT, (3, 5), output_index=0)
    assert play(executor, (10,), (3, 5), computed=5, output_index=1) == 11
    assert play(executor, (99,), (3, 5), computed=6, output_index=2) == END_OF_TURN_ID


def test_past_its_end_it_ends_again_and_again() -> None:
    executor = make_executor(TapeSpec({"*": (10,)}))
    play(executor, PROMPT, (3, 5), output_index=0)
    assert play(executor, (10,), (3, 5), computed=5, output_index=1) == END_OF_TURN_ID
    assert play(executor, (END_OF_TURN_ID,), (3, 5), computed=6, output_index=2) == END_OF_TURN_ID


def test_the_star_answers_every_prompt_without_its_own_row() -> None:
    executor = make_executor(TapeSpec({"*": (20,), prompt_hash(PROMPT): ()}))
    assert play(executor, (1, 2), (3,), output_index=0) == 20
    assert play(executor, PROMPT, (3, 5), output_index=0) == END_OF_TURN_ID


@pytest.mark.parametrize(("step_ms", "waits"), [(0.0, []), (20.0, [0.02])])
def test_a_step_takes_its_time_while_its_result_is_waited_for(step_ms: float, waits: list[float]) -> None:
    slept: list[float] = []
    executor = make_executor(TapeSpec({"*": (20,)}, step_ms=step_ms), sleep=slept.append)
    pending = executor.submit(StepPlan(1, ()))
    assert slept == []
    pending.result()
    assert slept == waits


def test_a_prompts_hash_is_what_tape_files_were_written_with() -> None:
    """As `printf '\\1\\0\\0\\0\\2\\0\\0\\0\\3\\0\\0\\0' | b2sum -l 128` says."""
    assert prompt_hash((1, 2, 3)) == "b30a3c159d7e8193559a42a84f1fcae1"


def told(
    executor: TapeExecutor, token_ids: tuple[int, ...], output_index: int, num_logprobs: int | None
) -> dict[int, TokenLogprobs]:
    """The logprobs of one step."""
    sampling = SamplingParams(max_tokens=9, num_logprobs=num_logprobs)
    computed = 0 if output_index == 0 else len(PROMPT) + output_index - 1
    request = ScheduledRequest("r", token_ids, computed, (3, 5), output_index, sampling)
    return executor.submit(StepPlan(1, (request,))).result().logprobs


def test_a_row_s_logprobs_are_played_to_who_asked_as_many_as_asked() -> None:
    known = (TokenLogprobs(-0.5, ((11, -0.1), (10, -0.5))), TokenLogprobs(-1.0, ((11, -1.0),)))
    spec = TapeSpec({prompt_hash(PROMPT): (10, 11)}, logprobs={prompt_hash(PROMPT): known})
    for count, top in (
        (0, ()),
        (1, ((11, -0.1),)),
        (2, ((11, -0.1), (10, -0.5))),
        (3, ((11, -0.1), (10, -0.5))),
    ):
        assert told(make_executor(spec), PROMPT, 0, count) == {0: TokenLogprobs(-0.5, top)}
    assert told(make_executor(spec), PROMPT, 0, None) == {}


def test_a_token_without_logprobs_of_its_own_was_certain() -> None:
    assert told(make_executor(), PROMPT, 0, 5) == {0: TokenLogprobs(0.0, ((10, 0.0),))}
    known = (TokenLogprobs(-0.5), TokenLogprobs(-1.0))
    executor = make_executor(TapeSpec({"*": (10, 11)}, logprobs={"*": known}))
    assert told(executor, PROMPT, 0, 1) == {0: TokenLogprobs(-0.5)}
    end = TokenLogprobs(0.0, ((END_OF_TURN_ID, 0.0),))
    assert told(executor, (99,), 1, 1) == {0: end}  # an output that it did not play
    executor = make_executor(TapeSpec({"*": (10,)}, logprobs={"*": known[:1]}))
    assert told(executor, PROMPT, 0, 1) == {0: TokenLogprobs(-0.5)}
    assert told(executor, (10,), 1, 1) == {0: end}  # past its end


# --- the spec ------------------------------------------------------------------------------


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_a_spec_says_all_there_is_to_say(tmp_path: Path) -> None:
    name = "0123456789abcdef" * 2
    tape = write(
        tmp_path / "my.tape",
        f'{{"prompt_hash": "{name}", "token_ids": [1, 2], "logprobs": [-0.5, [-1, [[3, -0.5], [2, -1]]]]}}',
        "",
        '{"prompt_hash": "*", "token_ids": []}',
    )
    assert parse_tape_spec(f"tape:{tape}?step_ms=2.5&vocab=/v/tokenizer.json&max_model_len=64") == TapeSpec(
        tapes={name: (1, 2), "*": ()},
        step_ms=2.5,
        vocab=Path("/v/tokenizer.json"),
        max_model_len=64,
        logprobs={
            name: (TokenLogprobs(-0.5, ((1, -0.5),)), TokenLogprobs(-1, ((3, -0.5), (2, -1)))),
            "*": (),
        },
    )


def test_without_a_file_a_built_in_sentence_answers_everything() -> None:
    spec = parse_tape_spec("tape:?step_ms=20")
    assert (spec.step_ms, spec.max_model_len, spec.eos_token_ids, spec.vocab) == (20.0, 8192, (258,), None)
    assert bytes(spec.tapes["*"]) == b"A headrace brings water to the turbines at a steady head."


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpt", "begins with 'tape:'"),
        ("tape:?speed=1", "unknown parameter 'speed'; there are step_ms, vocab, max_model_len"),
        ("tape:?step_ms=1&step_ms=2", "step_ms must be given once"),
        ("tape:?vocab=", "vocab must be given once and with a value"),
        *((f"tape:?step_ms={bad}", "step_ms must be a number") for bad in ("x", "-1", "nan", "inf")),
        *(
            (f"tape:?max_model_len={bad}", "max_model_len must be")
            for bad in ("1", "x", "1.5", "9" * 5000, "²")
        ),
        ("tape:/no/such/file", "tape file /no/such/file cannot be read: No such file"),
    ],
)
def test_a_wrong_spec_names_the_part(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_tape_spec(text)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "line 2: JSON is malformed"),
        ('{"prompt_hash": "*"}', "line 2: .*`token_ids`"),
        ('{"prompt_hash": "xyz", "token_ids": []}', r"line 2: .*\$.prompt_hash"),
        ('{"prompt_hash": "*", "token_ids": [-1]}', r"line 2: .*\$.token_ids"),
        ('{"prompt_hash": "*", "token_ids": [2147483648]}', r"line 2: .*\$.token_ids"),
        ('{"prompt_hash": "*", "token_ids": [], "speed": 1}', "line 2: .*`speed`"),
        ('{"prompt_hash": "*", "token_ids": []}', r"line 2: prompt_hash \* is there twice"),
        ('{"prompt_hash": "a", "token_ids": [], "logprobs": ["x"]}', r"line 2: "),
        (
            f'{{"prompt_hash": "{"a" * 32}", "token_ids": [1], "logprobs": []}}',
            "line 2: 0 logprobs for 1 token_ids",
        ),
        ("[" * 5000, "line 2: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    tape = write(tmp_path / "bad.tape", '{"prompt_hash": "*", "token_ids": [1]}', line)
    with pytest.raises(ValueError, match=complaint):
        parse_tape_spec(f"tape:{tape}")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    tape = tmp_path / "bad.tape"
    tape.write_bytes(b'{"prompt_hash": "\xff", "token_ids": []}')
    with pytest.raises(ValueError, match="line 1: "):
        parse_tape_spec(f"tape:{tape}")
