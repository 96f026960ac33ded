"""Caches that share a limit in bytes: what they hold counts once, and the limit holds."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from jitbatch import clear_caches, jitbatch
from jitbatch.record import context as context_module
from jitbatch.util.budget import Budget, BudgetCache


class Part:
    def __init__(self, size: int):
        self.size = size


def caches(most: int) -> tuple[Budget, BudgetCache, BudgetCache]:
    """A cache of parts, and one of pairs of a part and a further one."""
    budget = Budget(most)
    alone = BudgetCache(100, 100, budget, lambda part: [(part, part.size)])
    paired = BudgetCache(100, 100, budget, lambda pair: [(part, part.size) for part in pair])
    return budget, alone, paired


def test_a_part_of_several_entries_counts_once() -> None:
    budget, alone, paired = caches(100)
    part = Part(10)
    alone.put("a", part)
    paired.put("a", (part, Part(5)))
    paired.put("b", (part, Part(6)))
    assert budget.used == 21
    alone.discard("a")
    assert budget.used == 21
    paired.discard("a")
    assert budget.used == 16
    paired.clear()
    assert budget.used == 0


def test_the_largest_cache_drops_its_oldest_entries() -> None:
    budget, alone, paired = caches(100)
    paired.put("pair", (Part(10), Part(10)))
    for number in range(20):
        alone.put(number, Part(10))
        alone.get(0)
        assert budget.used <= 100
    assert paired.get("pair") is not None
    assert 0 in alone
    assert len(alone) == 8
    alone.put("huge", Part(1000))
    assert budget.used <= 100


def test_a_cache_that_is_gone_takes_no_bytes() -> None:
    budget, alone, _ = caches(100)
    alone.put("a", Part(10))
    del alone
    gc.collect()
    assert budget.used == 0


def test_what_a_function_remembers_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "MAX_BYTES", 60_000)
    fun = jitbatch(lambda scale, xs: scale * sum(xs))
    samples: list[Any] = [(1.0,) * (1 + number) for number in range(30)]
    wanted = [float(2 * len(sample)) for sample in samples]
    for _ in range(2):
        assert [fun.batch(2.0, [sample]).tolist()[0] for sample in samples] == wanted
        budget = fun._planner.contexts.budget
        assert 30_000 < budget.used <= 60_000
    assert 2 < fun.cache_info()["structures"].currsize < 15
    clear_caches()
    assert budget.used == 0


def test_an_entry_whose_parts_were_never_held_can_be_cleared() -> None:
    """As after an interrupt that came between an entry and its parts."""

    def interrupt(parts: Any) -> None:
        raise KeyboardInterrupt

    budget, alone, _ = caches(100)
    hold, budget.hold = budget.hold, interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        alone.put("a", Part(10))
    budget.hold = hold  # type: ignore[method-assign]
    alone.put("b", Part(5))
    alone.clear()
    assert budget.used == 0
