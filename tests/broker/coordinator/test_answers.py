"""Answers that are held, and effects that cause others."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.coordinator.effects import EffectLoop


async def test_all_tasks_that_wait_for_an_answer_get_it() -> None:
    answer, got = PendingAnswer(0), list[int]()

    async def wait() -> None:
        got.append(await answer.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not answer.is_settled
        answer.settle(7)
    assert got == [7, 7]
    assert await answer.wait() == 7


async def test_the_first_value_is_the_answer_when_the_time_is_over(autojump_clock: MockClock) -> None:
    answer = PendingAnswer("unknown")
    assert await answer.wait(5) == "unknown"
    assert trio.current_time() == 5
    assert not answer.is_settled


async def test_a_task_that_no_longer_waits_leaves_the_answer_to_others() -> None:
    answer, got = PendingAnswer(0), list[int]()

    async def wait(scope: trio.CancelScope) -> None:
        with scope:
            got.append(await answer.wait())

    cancelled, other = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, cancelled)
        nursery.start_soon(wait, other)
        await wait_all_tasks_blocked()
        cancelled.cancel()
        await wait_all_tasks_blocked()
        answer.settle(3)
    assert got == [3]


def test_effects_that_are_caused_by_others_follow_them() -> None:
    done: list[str] = []

    def carry_out(effect: str) -> None:
        done.append(effect)
        if len(effect) < 3:
            effects.put([f"{effect}1", f"{effect}2"])

    effects = EffectLoop(carry_out)
    effects.put(["a", "b"])
    assert done == ["a", "b", "a1", "a2", "b1", "b2", "a11", "a12", "a21", "a22", "b11", "b12", "b21", "b22"]


def test_effects_behind_one_that_fails_are_carried_out_with_the_next() -> None:
    done: list[str] = []

    def carry_out(effect: str) -> None:
        if effect == "bad":
            raise ValueError(effect)
        done.append(effect)

    effects = EffectLoop(carry_out)
    try:
        effects.put(["a", "bad", "b"])
    except ValueError:
        done.append("failed")
    effects.put(["c"])
    assert done == ["a", "failed", "b", "c"]
