"""The gateway bench's client: what counts as a whole answer, and what it counts in it."""

from __future__ import annotations

import json
import socket

import pytest

from loadtest.gateway_bench import answers, load
from loadtest.gateway_bench.answers import TEXT, BenchRequest, BrokenAnswer, check
from loadtest.gateway_bench.bounds import AT_LEAST, missed_bounds
from loadtest.gateway_bench.load import run_load
from loadtest.gateway_bench.received import Received
from loadtest.gateway_bench.scripted import last_events, read_request, token_event, tokens_of
from tests.loadtest.fake_api import FakeApi, Reply, event, fake_api, streamed

ASK = BenchRequest(key="k", model="scripted", max_tokens=4)


def port_of(api: FakeApi) -> int:
    return int(api.url.rpartition(":")[2])


def arrived(*parts: bytes, status: int = 200) -> Received:
    """One part a second, the first one a second after the request."""
    return Received(
        sent_at=10.0, status=status, parts=list(parts), times=[11.0 + i for i in range(len(parts))]
    )


def scripted_parts(ask: BenchRequest) -> list[bytes]:
    request = read_request(ask.to_bytes().partition(b"\r\n\r\n")[2])
    return [*(token_event(text) for text in tokens_of(request)), last_events(request)]


# --- one answer ------------------------------------------------------------------------------


def test_a_request_has_the_length_that_it_says() -> None:
    head, _, body = ASK.to_bytes().partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}" in head.decode().splitlines()
    assert "Authorization: Bearer k" in head.decode().splitlines()
    assert json.loads(body)["stream_options"] == {"include_usage": True}


def test_what_the_comparison_servers_send_is_a_whole_answer() -> None:
    checked = check(ASK, arrived(*scripted_parts(ASK)))
    assert (checked.num_tokens, checked.num_events, checked.ttft_s) == (4, 4, 1.0)
    assert checked.gaps_s == (1.0, 1.0, 1.0)


def test_tokens_that_came_in_one_event_are_one_event() -> None:
    *_, last = scripted_parts(ASK)
    checked = check(ASK, arrived(token_event(TEXT[:3]), token_event(TEXT[3]), last))
    assert (checked.num_tokens, checked.num_events) == (4, 2)


def test_parts_may_be_cut_anywhere() -> None:
    whole = b"".join(scripted_parts(ASK))
    checked = check(ASK, arrived(*(whole[at : at + 7] for at in range(0, len(whole), 7))))
    assert (checked.num_tokens, checked.num_events) == (4, 4)


@pytest.mark.parametrize("left_out", range(5))
def test_an_answer_without_one_of_its_parts_is_broken(left_out: int) -> None:
    parts = scripted_parts(ASK)
    del parts[left_out]
    with pytest.raises(BrokenAnswer):
        check(ASK, arrived(*parts))


def test_a_token_that_came_twice_is_found() -> None:
    first, *rest = scripted_parts(ASK)
    with pytest.raises(BrokenAnswer, match="not the tape's text"):
        check(ASK, arrived(first, first, *rest))


def test_another_number_of_tokens_than_asked_is_found() -> None:
    with pytest.raises(BrokenAnswer, match="wrong length"):
        check(BenchRequest("k", "scripted", 5), arrived(*scripted_parts(ASK)))


def test_a_refusal_is_told_with_its_reason() -> None:
    body = b'{"error":{"message":"no such key","code":"invalid_api_key"}}'
    with pytest.raises(BrokenAnswer, match="status 401: no such key"):
        check(ASK, arrived(body, status=401))


def test_an_answer_that_is_not_streamed_is_checked_too() -> None:
    ask = BenchRequest("k", "scripted", 4, is_streamed=False)
    usage = {"prompt_tokens": 16, "completion_tokens": 4}
    body = {"choices": [{"text": TEXT[:4], "finish_reason": "length"}], "usage": usage}
    assert check(ask, arrived(json.dumps(body).encode())).num_tokens == 4
    body["choices"] = [{"text": "else", "finish_reason": "length"}]
    with pytest.raises(BrokenAnswer, match="not the tape's text"):
        check(ask, arrived(json.dumps(body).encode()))


def test_the_tape_file_holds_the_text_that_is_expected() -> None:
    row = json.loads(answers.tape())
    assert (row["prompt_hash"], bytes(row["token_ids"]).decode()) == ("*", TEXT)


# --- a load ----------------------------------------------------------------------------------


def test_each_stream_asks_so_often_after_one_warm_up_that_is_not_counted() -> None:
    with fake_api(lambda body: streamed(list(TEXT[: body["max_tokens"]]))) as api:
        outcome = run_load(port_of(api), BenchRequest("k", "m", 20), streams=3, answers_each=2)
    assert [answer.num_tokens for answer in outcome.answers] == [20] * 6
    assert sorted(body["max_tokens"] for body in api.bodies) == [16] * 3 + [20] * 6
    assert outcome.tokens_per_s == outcome.events_per_s == pytest.approx(120 / outcome.elapsed_s)
    assert outcome.requests_per_s == pytest.approx(6 / outcome.elapsed_s)
    assert (len(outcome.ttfts_s), len(outcome.gaps_s)) == (6, 6 * 19)
    assert outcome.client_cpu_share >= 0


def test_a_broken_answer_ends_the_run_and_is_not_counted() -> None:
    def answer(body: dict) -> Reply:
        whole = streamed(list(TEXT[: body["max_tokens"]]))
        return whole if body["max_tokens"] == 16 else whole._replace(pieces=whole.pieces[1:])

    with fake_api(answer) as api, pytest.raises(BrokenAnswer, match="not the tape's text"):
        run_load(port_of(api), BenchRequest("k", "m", 20), streams=1, answers_each=1)


def test_a_connection_cut_in_an_answer_is_told() -> None:
    cut = Reply((event({"choices": [{"text": "A"}]}),), is_cut=True)
    with fake_api(lambda body: cut) as api, pytest.raises(BrokenAnswer, match="before the answer's end"):
        run_load(port_of(api), ASK, streams=1, answers_each=1)


def test_an_answer_that_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LOAD_TIMEOUT_S", 0.05)
    hanging = Reply((event({"choices": [{"text": "A"}]}),), hangs=True)
    with fake_api(lambda body: hanging) as api, pytest.raises(BrokenAnswer, match="had not ended"):
        run_load(port_of(api), ASK, streams=1, answers_each=1)


def test_a_port_without_a_server_is_told() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(BrokenAnswer, match="nothing listens on port"):
            run_load(sock.getsockname()[1], ASK, streams=1, answers_each=1)


# --- bounds ----------------------------------------------------------------------------------


def test_a_figure_on_its_bound_holds_and_one_below_is_named() -> None:
    assert missed_bounds(AT_LEAST) == []
    for name, bound in AT_LEAST.items():
        (line,) = missed_bounds({**AT_LEAST, name: bound - 1})
        assert line == f"{name} is {bound - 1}, below {bound}"
