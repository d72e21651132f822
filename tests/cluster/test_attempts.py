"""Attempts: bounded tries, and when a request is taken for what kills its replicas."""

from __future__ import annotations

import pytest

from cluster.attempts import MAX_DEATHS, MAX_SUBMITS, Attempts


def test_attempts_are_numbered_from_0_and_remember_where() -> None:
    attempts = Attempts()
    assert [attempts.begin(replica_id) for replica_id in "aba"] == [0, 1, 2]
    assert attempts.tried == {"a", "b"}


def test_submits_are_bounded_until_one_is_accepted() -> None:
    attempts = Attempts()
    for number in range(MAX_SUBMITS):
        assert attempts.may_submit
        assert attempts.begin("a") == number
    assert not attempts.may_submit
    attempts.answered()
    assert attempts.may_submit


def test_two_losses_without_a_token_between_are_poison() -> None:
    attempts = Attempts()
    attempts.lost("a")
    assert not attempts.is_poisonous
    attempts.lost("b")
    assert attempts.is_poisonous


def test_a_token_clears_it_and_every_replica_is_worth_a_try_again() -> None:
    attempts = Attempts()
    attempts.lost("a")
    attempts.progressed()
    assert attempts.tried == set()
    attempts.lost("b")
    assert not attempts.is_poisonous


@pytest.mark.parametrize(("num_lost", "is_poisonous"), [(MAX_DEATHS - 1, False), (MAX_DEATHS, True)])
def test_nobody_loses_one_replica_after_the_other_for_ever(num_lost: int, is_poisonous: bool) -> None:
    attempts = Attempts()
    for _ in range(num_lost):
        attempts.progressed()
        attempts.lost("a")
    assert attempts.is_poisonous is is_poisonous
