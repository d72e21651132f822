"""Fair shares: whose turn it is, and who makes room, as the policy is asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from cluster.fair_policy import FairShare
from cluster.generation import WARMING
from engine.policy import Service
from engine.request import Flow
from tenants.batch_floor import MAX_OUTPUT_DEBT
from tests.engine.candidate import Candidate

A, B, C = (Flow(flow_id) for flow_id in "abc")
PAID = Flow("paid", 4)
_arrivals = count()


def a_request(request_id: str, flow: Flow = A, **fields: int) -> Candidate:
    """Of 10 tokens; each comes after those that were made before."""
    defaults = {"arrival_order": next(_arrivals), "num_uncomputed_tokens": 10}
    return Candidate(request_id, flow=flow, **{**defaults, **fields})


def policy_of(*waiting: Candidate, **input_tokens: int) -> FairShare:
    """For which these wait, and these flows were served so much already."""
    policy = FairShare()
    for candidate in waiting:
        policy.arrived(candidate)
    for flow_id, tokens in input_tokens.items():
        policy.served(Candidate("before", flow=Flow(flow_id)), Service(tokens))
    return policy


def order(policy: FairShare, *candidates: Candidate) -> str:
    return " ".join(candidate.request_id for candidate in policy.order(candidates))


class TestTheOrder:
    def test_of_a_flow_s_own_requests_is_that_of_their_arrival(self) -> None:
        first, second = a_request("a1"), a_request("a2")
        assert order(policy_of(first, second), second, first) == "a1 a2"

    def test_begins_with_the_flow_that_was_served_least(self) -> None:
        requests = a_request("a", A), a_request("b", B), a_request("c", C)
        assert order(policy_of(*requests, a=30, b=10, c=20), *requests) == "b c a"

    def test_counts_service_by_weight(self) -> None:
        requests = a_request("paid", PAID), a_request("a", A)
        policy = policy_of(*requests, a=30)
        policy.served(requests[0], Service(num_uncached_tokens=100))
        assert order(policy, *requests) == "paid a"
        policy.served(requests[0], Service(num_uncached_tokens=24))
        assert order(policy, *requests) == "a paid"

    def test_counts_cached_input_a_tenth_and_output_in_full(self) -> None:
        requests = a_request("a", A), a_request("b", B)
        policy = policy_of(*requests)
        policy.served(requests[0], Service(num_cached_tokens=50))
        policy.served(requests[1], Service(num_output_tokens=4))
        assert order(policy, *requests) == "b a"

    def test_counts_what_a_flow_s_earlier_requests_will_have_been_served_in_the_same_step(self) -> None:
        requests = [a_request(f"a{n}", A) for n in range(1, 5)] + [a_request(f"b{n}", B) for n in range(1, 4)]
        assert order(policy_of(*requests, b=15), *requests) == "a1 a2 b1 a3 b2 a4 b3"

    def test_counts_that_by_weight_too(self) -> None:
        requests = [a_request(f"p{n}", PAID) for n in range(1, 9)] + [a_request(f"a{n}", A) for n in (1, 2)]
        assert order(policy_of(*requests), *requests) == "a1 p1 p2 p3 p4 a2 p5 p6 p7 p8"

    def test_lets_the_shorter_line_go_first_where_flows_are_level(self) -> None:
        flood, quiet = [a_request(f"a{n}", A) for n in (1, 2, 3)], a_request("b", B)
        assert order(policy_of(*flood, quiet), *flood, quiet) == "b a1 a2 a3"

    def test_puts_the_preempted_in_front_of_their_own_flow_only(self) -> None:
        again = a_request("again", A, num_preemptions=1)
        requests = a_request("a", A), a_request("b", B), again
        assert order(policy_of(*requests, a=5), *requests) == "b again a"

    def test_puts_interactive_before_batch(self) -> None:
        requests = a_request("batch", A, priority=1), a_request("b", B)
        assert order(policy_of(*requests, b=1000), *requests) == "b batch"

    def test_is_empty_of_nobody(self) -> None:
        assert order(FairShare()) == ""

    def test_compares_a_flow_s_batch_with_other_batch_only(self) -> None:
        """Its interactive requests were served, its batch ones never."""
        requests = a_request("a", A, priority=1), a_request("b", B, priority=1)
        policy = policy_of(*requests, a=1000)
        policy.served(requests[1], Service(num_uncached_tokens=1))
        assert order(policy, *requests) == "a b"

    def test_gives_who_comes_no_claim_on_what_batch_was_kept_from(self) -> None:
        batch, flood = a_request("batch", C, priority=1), a_request("a", A)
        policy = policy_of(batch, flood, a=1000)
        newcomer = a_request("b", B)
        policy.arrived(newcomer)
        policy.served(newcomer, Service(num_uncached_tokens=1))
        assert order(policy, newcomer, flood) == "a b"


class TestBatch:
    """Is owed a twentieth of what is served while it waits behind interactive requests."""

    def contended(self, *batch: Candidate) -> tuple[FairShare, Candidate]:
        """A step was made up while both waited."""
        interactive = a_request("i", B)
        policy = policy_of(interactive, *batch)
        policy.order([interactive, *batch])
        return policy, interactive

    def test_goes_first_up_to_what_it_is_owed(self) -> None:
        batch = [a_request(f"b{n}", A, priority=1) for n in (1, 2, 3)]
        policy, interactive = self.contended(*batch)
        assert order(policy, interactive, *batch) == "i b1 b2 b3"
        policy.served(interactive, Service(num_uncached_tokens=19))
        assert order(policy, interactive, *batch) == "b1 i b2 b3"
        policy.served(interactive, Service(num_uncached_tokens=19 * 10))
        assert order(policy, interactive, *batch) == "b1 b2 i b3"

    def test_pays_for_its_input_however_much_that_is(self) -> None:
        batch = a_request("b", A, priority=1)
        policy, interactive = self.contended(batch)
        policy.served(interactive, Service(num_uncached_tokens=19))
        policy.served(batch, Service(num_uncached_tokens=100))
        policy.served(interactive, Service(num_uncached_tokens=19 * 99))
        assert order(policy, interactive, batch) == "i b"
        policy.served(interactive, Service(num_uncached_tokens=1))
        assert order(policy, interactive, batch) == "b i"

    def test_pays_for_its_output(self) -> None:
        batch = a_request("b", A, priority=1)
        policy, interactive = self.contended(batch)
        policy.served(batch, Service(num_output_tokens=10))
        policy.served(interactive, Service(num_uncached_tokens=19 * 10))
        assert order(policy, interactive, batch) == "i b"
        policy.served(interactive, Service(num_output_tokens=1))
        assert order(policy, interactive, batch) == "b i"

    def test_does_not_wait_for_all_the_output_of_who_held_the_seats_before(self) -> None:
        batch, running = (a_request(name, A, priority=1) for name in ("b", "running"))
        policy, interactive = self.contended(batch)
        for _ in range(MAX_OUTPUT_DEBT):
            policy.served(running, Service(num_output_tokens=1))
        policy.served(interactive, Service(num_uncached_tokens=MAX_OUTPUT_DEBT - 1))
        assert order(policy, interactive, batch) == "i b"
        policy.served(interactive, Service(num_uncached_tokens=20))
        assert order(policy, interactive, batch) == "b i"

    def test_is_owed_nothing_of_what_was_served_before_it_came(self) -> None:
        interactive = a_request("i", B)
        policy = policy_of(interactive)
        policy.order([interactive])
        policy.served(interactive, Service(num_uncached_tokens=1000))
        batch = a_request("b", A, priority=1)
        policy.arrived(batch)
        assert order(policy, interactive, batch) == "i b"

    def test_is_owed_of_a_step_in_which_all_that_were_interactive_were_let_in(self) -> None:
        batch = a_request("b", A, priority=1)
        policy, interactive = self.contended(batch)
        policy.left(interactive)
        policy.served(interactive, Service(num_uncached_tokens=100))
        another = a_request("i2", B)
        policy.arrived(another)
        assert order(policy, another, batch) == "b i2"


class TestTheVictim:
    def test_is_of_the_lowest_class(self) -> None:
        batch, interactive = a_request("batch", A, priority=1), a_request("i", B)
        assert policy_of(b=1000).victim([interactive, batch]) == batch

    def test_is_of_the_flow_that_is_furthest_above_its_share(self) -> None:
        cheap, dear = a_request("a", A, num_computed_tokens=1), a_request("b", B, num_computed_tokens=99)
        assert policy_of(a=10, b=11).victim([cheap, dear]) == dear

    def test_is_then_the_one_with_the_fewest_tokens_to_recompute_then_the_youngest(self) -> None:
        dear = a_request("dear", num_computed_tokens=9)
        cheap = a_request("cheap", num_computed_tokens=5)
        young = replace(cheap, request_id="young", arrival_order=cheap.arrival_order + 1)
        assert FairShare().victim([dear, cheap]) == cheap
        assert FairShare().victim([young, dear, cheap]) == young


class TestWhatNobodyAskedFor:
    def test_goes_last_as_it_came_whatever_batch_is_owed(self) -> None:
        warm = [a_request(f"w{n}", Flow(), priority=WARMING) for n in (1, 2)]
        batch, interactive = a_request("b", A, priority=1), a_request("i", B)
        policy = policy_of(*warm, batch, interactive)
        assert order(policy, *warm, batch, interactive) == "i b w1 w2"
        policy.served(interactive, Service(num_uncached_tokens=1000))
        assert order(policy, *warm, batch, interactive) == "b i w1 w2"

    def test_counts_in_no_share_and_no_floor(self) -> None:
        warm = a_request("w", A, priority=WARMING)
        batch = a_request("a", A, priority=1), a_request("b", B, priority=1)
        interactive = a_request("i", A)
        policy, alike = policy_of(warm, *batch, interactive), policy_of(*batch, interactive)
        for one in (policy, alike):
            assert order(one, *batch, interactive) == "i a b", "both classes wait"
        for _ in range(100):
            policy.served(warm, Service(1000, 1000, 1))
        assert order(policy, *batch, interactive) == order(alike, *batch, interactive)
        policy.left(warm)
        policy.served(interactive, Service(num_uncached_tokens=20))
        alike.served(interactive, Service(num_uncached_tokens=20))
        assert order(policy, *batch, interactive) == order(alike, *batch, interactive) == "a i b"

    def test_makes_room_first_and_is_background(self) -> None:
        warm, batch = a_request("w", priority=WARMING), a_request("b", priority=1)
        policy = policy_of(warm, batch)
        assert policy.victim([batch, warm]) is warm
        assert (policy.is_background(warm), policy.is_background(batch)) == (True, False)
