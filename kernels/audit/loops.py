"""Loops of a program that is known by what may come after each of its instructions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set


def loop_bodies(successors: Sequence[Sequence[int]]) -> list[Set[int]]:
    """The natural loops, numbers of their instructions; those with one head are one.

    A jump from b back to a is a loop's if b can't be reached but through a. Its body is what leads to b
    without passing a. So code that was only moved out of the way, and jumps back, is no loop.
    """
    predecessors: defaultdict[int, list[int]] = defaultdict(list)
    for number, after in enumerate(successors):
        for follower in after:
            predecessors[follower].append(number)
    bodies: dict[int, Set[int]] = {}
    for number, after in enumerate(successors):
        for head in (follower for follower in after if follower <= number):
            if number == head or number not in _reached(successors, 0, head):
                bodies[head] = bodies.get(head, set()) | _reached(predecessors, number, head) | {head}
    return list(bodies.values())


def _reached(after: Sequence[Sequence[int]] | defaultdict[int, list[int]], start: int, wall: int) -> set[int]:
    """What can be come to from `start` without a step on `wall`."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        number = waiting.pop()
        if number != wall and number not in found:
            found.add(number)
            waiting += after[number]
    return found
