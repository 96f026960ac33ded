"""Programs that take plans, exported by `jax.export`: called again in this process and in another."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from saved import cases, data_of
from zoo import assert_bits

from jitbatch import Plan, Static, jitbatch
from jitbatch.plan.saved.export import ExportedOutlines
from jitbatch.plan.saved.plans import saved_static
from jitbatch.util.errors import JitbatchError, OutputError, PlanError

W = jnp.float32(2.0)
ALL = cases()
CASES = {
    name: ALL[name] for name in ("fused", "dispatch", "sums", "ragged", "ragged dispatch", "list", "static", "keys")
}


def program(case: Any) -> Any:
    return jax.jit(lambda shared, plan, further: case.fun.batch(*shared, plan, *further))


def plain(result: Any) -> Any:
    return jax.tree.map(data_of, result.to_list() if hasattr(result, "to_list") else result)


def written_and_read(exported: Any) -> Any:
    pytest.importorskip("flatbuffers", reason="jax.export saves programs with flatbuffers, which is not installed")
    return export.deserialize(bytearray(exported.serialize()))


# --- The static part, as it is saved


@pytest.mark.parametrize("name", CASES)
def test_a_saved_static_part_is_equal_to_the_one_it_was_saved_from(name: str) -> None:
    static = CASES[name].plan().static
    saved = pickle.loads(pickle.dumps(saved_static(static)))
    assert saved == static
    assert static == saved
    assert saved_static(static) is saved_static(static)
    others = [CASES[other].plan().static for other in CASES if other != name]
    assert not any(saved == other or other == saved for other in others)


def test_plans_with_other_room_are_others() -> None:
    fun = jitbatch(lambda w, xs: w * sum(xs))
    small, large = fun.plan(2.0, [(1.0, 2.0)]), fun.plan(2.0, [(1.0, 2.0)] * 2 + [tuple(np.arange(50.0))])
    assert saved_static(small.static) != large.static
    assert saved_static(fun.plan(2.0, [(5.0, 6.0)]).static) == small.static


def test_nestings_that_were_known_are_the_first_that_are_known() -> None:
    live, saved = ragged_outlines(3), ExportedOutlines()
    for tree in live.entries[:2]:
        saved.number(tree)
    assert saved == live
    assert live == saved
    assert saved != ragged_outlines(1)
    with pytest.raises(OutputError, match="nests its items in a way that the exported program has not met"):
        saved[2]


def ragged_outlines(many: int) -> Any:
    fun = jitbatch(lambda w, xs: [w * x for x in xs], out="ragged")
    return fun.batch(2.0, [tuple(np.arange(1.0 + n)) for n in range(many)]).outlines


# --- Exported programs


@pytest.mark.parametrize("name", CASES)
def test_in_the_same_process(name: str) -> None:
    case = CASES[name]
    plan = case.plan()
    exported = written_and_read(export.export(program(case))(case.shared, plan, case.further))
    want = plain(program(case)(case.shared, plan, case.further))
    for own in (plan, pickle.loads(pickle.dumps(plan)), case.plan(like=plan)):
        assert_bits(plain(exported.call(case.shared, own, case.further)), want)


def test_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export saves programs with flatbuffers, which is not installed")
    programs = {}
    for name, case in CASES.items():
        plan = case.plan()
        exported = export.export(program(case))(case.shared, plan, case.further)
        programs[name] = bytes(exported.serialize()), pickle.dumps(plan)
    (tmp_path / "programs").write_bytes(pickle.dumps(programs))
    here = Path(__file__).parents[2]
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": path}
    command = [sys.executable, str(here / "exported.py"), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name, results in pickle.loads((tmp_path / "results").read_bytes()).items():
        case = CASES[name]
        want = plain(program(case)(case.shared, case.plan(), case.further))
        for result in results:
            assert_bits(result, want)


def test_other_samples_and_gradients() -> None:
    case = CASES["fused"]
    (params,) = case.shared
    (rows,) = case.mapped

    def loss(params: Any, plan: Any) -> Any:
        return jnp.sum(jnp.sin(case.fun.batch(params, plan)))

    step = jax.jit(jax.value_and_grad(loss))
    exported = written_and_read(export.export(step)(params, case.plan()))
    plan = case.fun.plan(params, rows[::-1], like=case.plan())
    value, gradients = exported.call(params, plan)
    expected = jax.value_and_grad(lambda p: sum(jnp.sum(jnp.sin(case.fun(p, xs))) for xs in rows))(params)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradients, expected[1])


def test_a_plan_that_does_not_fit_is_refused() -> None:
    fun = jitbatch(lambda w, xs: w * sum(xs))
    exported = export.export(jax.jit(fun.batch))(W, fun.plan(W, [(1.0, 2.0)]))
    told = r"Plan'> with pytree metadata <fused program of <jitbatch of .*>: room for [0-9]+ sum .*> in .*"
    with pytest.raises(ValueError, match=rf"(?s){told}<saved fused program of .*: room for [0-9]+ sum "):
        written_and_read(exported).call(W, fun.plan(W, [tuple(np.arange(50.0))]))


def test_samples_with_static_values_as_arguments() -> None:
    fun = jitbatch(lambda w, sample: w * sample[1] if sample[0].value == "MUL" else w + sample[1])
    samples = [(Static("MUL"), 3.0), (Static("ADD"), 4.0)]
    exported = written_and_read(export.export(jax.jit(fun.batch))(2.0, samples))
    np.testing.assert_allclose(exported.call(2.0, samples), [fun(2.0, sample) for sample in samples])
    with pytest.raises(ValueError, match="pytree structure"):
        exported.call(2.0, samples[::-1])


def test_plans_of_single_samples_are_refused() -> None:
    fun = jitbatch(lambda w, x: w * x, executor="per_sample")
    plan: Plan = fun.plan(W, [1.0])
    exported = export.export(jax.jit(fun.batch))(W, plan)
    with pytest.raises(PlanError, match="a plan for the per_sample executor holds compiled programs"):
        written_and_read(exported)
    assert issubclass(PlanError, JitbatchError)
