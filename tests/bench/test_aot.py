"""Programs for accelerators, compiled for real: their structure. Skipped where a compiler is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import aot  # noqa: E402
from ahead.costs import costs_of  # noqa: E402
from ahead.hlo import Module  # noqa: E402

PROGRAM = """HloModule step

%body (p: (s32[], f32[4000,128])) -> (s32[], f32[4000,128]) {
  %p = (s32[], f32[4000,128]{1,0}) parameter(0)
  %rows = f32[4000,128]{1,0} get-tuple-element(%p), index=1
  %copy.1 = f32[4000,128]{1,0} copy(%rows)
  %fusion.1 = f32[8,128]{1,0} fusion(%copy.1), kind=kLoop, calls=%inside, backend_config={"estimated_cycles":"2000"}
  ROOT %t = (s32[], f32[4000,128]{1,0}) tuple(%p, %copy.1)
}

%cond (p: (s32[], f32[4000,128])) -> pred[] {
  %p = (s32[], f32[4000,128]{1,0}) parameter(0)
  ROOT %lt = pred[] compare(%p, %p), direction=LT
}

ENTRY %main (a: f32[4000,128]) -> f32[4000,128] {
  %a = f32[4000,128]{1,0} parameter(0)
  %w = (s32[], f32[4000,128]) while(%a), condition=%cond, body=%body, metadata={op_name="SCOPE"}
  ROOT %r = f32[4000,128]{1,0} get-tuple-element(%w), index=1
}
""".replace("SCOPE", "loop_1/while/body/chunks_0_64/while")


def test_costs_are_multiplied_by_the_trips_of_the_plan() -> None:
    costs = costs_of(Module(PROGRAM), {("forward loop_1", "chunks_0_64"): 7})
    assert (costs.launches, costs.checks, costs.cycles) == (14, 8, 14_000)
    assert (costs.copies, costs.copied) == (1, 7 * 4000 * 128 * 4)
    assert not costs.unknown


def test_a_loop_of_unknown_length_is_named() -> None:
    costs = costs_of(Module(PROGRAM), {})
    assert len(costs.unknown) == 1
    assert costs.launches == 2


def compiled(target: str, program: str = "jitbatch") -> dict[str, Any]:
    spec = {"target": target, "case": "SST", "batch": 64, "hidden": 32, "mode": "training", "program": program}
    try:
        return aot.compiled(spec, make=False)
    except aot.Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.parametrize("target", aot.TARGETS)
def test_no_loop_copies_an_arena(target: str) -> None:
    row = compiled(target)
    assert row["launches"] > 0
    assert row["copies"] == 0
    assert not [scope for scope in row["unknown"] if scope.endswith("/while")]


@pytest.mark.slow
def test_a_gpu_launches_no_more_than_by_hand() -> None:
    assert compiled("h100")["launches"] <= compiled("h100", "by hand")["launches"]
