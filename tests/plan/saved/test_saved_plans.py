"""Plans that are pickled: the same bits in this process and in another, and a clear refusal of what has changed."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from saved import Case, cases, chain, step
from zoo import HIDDEN, INPUT, Params, assert_bits, counted_compilations, gradients, normal, rnn_params

import jitbatch as jb
from jitbatch import Plan, jitbatch
from jitbatch.plan.saved.plans import SavedStatic
from jitbatch.util.errors import PlanError

CASES = cases()
PARAMS = rnn_params(jax.random.key(0))
ROWS = [normal(np.random.default_rng(0), length, INPUT) for length in (3, 1, 4)]


def copied(plan: Plan) -> Plan:
    return pickle.loads(pickle.dumps(plan))


@functools.cache
def planned(name: str) -> tuple[Plan, Any]:
    """The plan of a case, and its result."""
    plan = CASES[name].plan()
    return plan, CASES[name].run(plan)


# --- The same plan again


@pytest.mark.parametrize("name", CASES)
def test_in_the_same_process(name: str) -> None:
    case = CASES[name]
    plan, want = planned(name)
    again = copied(plan)
    assert isinstance(again.static, SavedStatic)
    assert repr(again) == repr(plan)
    assert [len(str(again).splitlines()), again.summary] == [1, plan.summary]
    for one in (again, copied(again)):
        assert_bits(case.run(one), want)
    assert case.plan(like=again).static is case.plan(like=plan).static


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What another process, whose hashes are other ones, makes of the plans of all cases."""
    directory = tmp_path_factory.mktemp("saved")
    pickled = {name: pickle.dumps(planned(name)[0]) for name in CASES}
    (directory / "plans").write_bytes(pickle.dumps(pickled))
    for name in CASES:
        planned(name)[0].save(directory / f"{name}.plan")
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    command = [sys.executable, str(here / "saved.py"), str(directory)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return pickle.loads((directory / "results").read_bytes())


@pytest.mark.parametrize("name", CASES)
def test_in_another_process(name: str, elsewhere: Any) -> None:
    case = CASES[name]
    plan, want = planned(name)
    told, *rest = elsewhere[name]
    assert told == "ok", rest
    result, pickled_again, like, is_same = rest
    assert is_same == (case.plan(like=plan).static is plan.static)
    assert_bits(result, want)
    assert like == case.plan(like=plan).summary
    assert_bits(case.run(pickle.loads(pickled_again)), want)


def test_one_compilation_serves_restored_plans() -> None:
    case = CASES["several arguments"]
    plan, want = planned("several arguments")
    run = jax.jit(lambda params, plan: gradients(lambda p, _: case.fun.batch(p, plan), params, []))
    with counted_compilations() as compilations:
        values, _ = jax.block_until_ready(run(*case.shared, copied(plan)))
        assert_bits(jax.block_until_ready(run(*case.shared, copied(copied(plan))))[0], values)
    assert len(compilations) == 1
    np.testing.assert_allclose(values[0], want[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["ragged", "ragged dispatch"])
def test_ragged_results_of_restored_plans_in_jit(name: str) -> None:
    case = CASES[name]
    plan, want = planned(name)
    traces = []

    @jax.jit
    def run(params: Params, plan: Plan) -> Any:
        traces.append(None)
        return case.fun.batch(params, plan)

    for again in (copied(plan), copied(plan)):
        got = run(*case.shared, again)
        assert got.outlines is case.fun.batch(*case.shared, plan).outlines
        assert_bits(jax.tree.map(np.asarray, got.to_list()), want)
    assert len(traces) == 1


def test_restored_plans_pass_through_jax() -> None:
    case = CASES["keys"]
    plan, want = planned("keys")
    again = copied(plan)
    for same in (jax.jit(lambda plan: plan)(again), jax.device_put(again), jax.tree.map(jnp.asarray, again)):
        assert same.static == again.static
        assert_bits(case.run(same), want)
        assert_bits(case.run(copied(same)), want)


def test_recordings_that_were_forgotten() -> None:
    case = CASES["list"]
    plan, want = planned("list")
    again = copied(plan)
    case.run(again)
    jb.clear_caches()
    assert_bits(case.run(again), want)


def test_a_plan_of_shards() -> None:
    batched = jitbatch(chain)
    plan = batched.plan(PARAMS, ROWS[:2], shards=2)
    again = copied(plan)
    assert (again.shards, repr(again)) == (2, repr(plan))
    for place in range(2):
        assert_bits(batched.batch(PARAMS, again.shard(place)), batched.batch(PARAMS, plan.shard(place)))
    with pytest.raises(PlanError, match="the plan has 2 shards"):
        batched.batch(PARAMS, again)


def test_samples_without_nodes_and_with_shared_rows() -> None:
    """No kind of node tells of them, but in another process they are to be known as well."""
    same = jitbatch(lambda params, xs: xs)
    assert_bits(same.batch(PARAMS, copied(same.plan(PARAMS, [ROWS[0]]))), ROWS[0][None])

    def fun(params: Params, xs: Array) -> Array:
        return chain(params, xs) if len(xs) > 1 else params["one"] if len(xs) else params["none"]

    batched = jitbatch(fun)
    samples = [ROWS[0], ROWS[1], ROWS[1][:0]]
    params = {**PARAMS, "one": 2 * PARAMS["b"], "none": 3 * PARAMS["b"]}
    pickled = pickle.dumps(batched.plan(params, samples))
    want = batched.batch(params, pickle.loads(pickled))
    jb.clear_caches()
    assert_bits(batched.batch(params, pickle.loads(pickled)), want)


def test_a_partial_function_has_a_name() -> None:
    batched = jitbatch(functools.partial(lambda scale, params, xs: scale * chain(params, xs), 2.0))
    plan = batched.plan(PARAMS, ROWS)
    assert_bits(batched.batch(PARAMS, copied(plan)), batched.batch(PARAMS, plan))


# --- What is refused


def refuses(fun: Any, params: Any, plan: Plan, message: str) -> PlanError:
    with pytest.raises(PlanError, match=message) as raised:
        fun.batch(params, plan)
    return raised.value


def saved_by(fun: Any, params: Any = PARAMS) -> Plan:
    return copied(jitbatch(fun).plan(params, ROWS))


def test_plans_of_the_loop_executor() -> None:
    plan = jitbatch(chain, executor="per_sample").plan(PARAMS, ROWS)
    with pytest.raises(
        PlanError, match="per_sample executor holds compiled programs: save the samples, and plan them again"
    ):
        pickle.dumps(plan)
    with pytest.raises(PlanError, match="per_sample executor holds compiled programs"):
        pickle.dumps(jitbatch(lambda w, x: w * x, executor="per_sample").plan(2.0, [1.0]))


def test_a_plan_that_is_traced() -> None:
    with pytest.raises(PlanError, match="being traced cannot be saved or pickled"):
        jax.jit(lambda plan: pickle.dumps(plan) and 0)(planned("fused")[0])


def test_another_function() -> None:
    def other(params: Params, xs: Array) -> Array:
        return chain(params, xs)

    refuses(jitbatch(other), PARAMS, saved_by(chain), r"made by `chain`, not by `test_another_function.*other`: a plan")


def test_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = saved_by(chain)
    monkeypatch.setattr("jitbatch.plan.saved.plans.__version__", "99.0")
    refuses(
        jitbatch(chain), PARAMS, plan, r"made by jitbatch 0\..* with jax .*, but this is jitbatch 99.0 .*Plan again"
    )


def renamed(fun: Any) -> Any:
    """Another function in the place of `chain`, as after an edit."""
    fun.__qualname__ = chain.__qualname__
    return jitbatch(fun)


CHANGES: dict[str, Any] = {
    "another cell": lambda p, xs: functools.reduce(lambda h, x: jnp.sin(x @ p["x"] + h @ p["h"]), xs, p["h0"]),
    "another order": lambda p, xs: chain(p, list(xs)[::-1]),
    "another output": lambda p, xs: (
        functools.reduce(lambda h, x: step(p, x, h), xs[:-1], p["h0"]) if len(xs) > 1 else chain(p, xs)
    ),
    "another parameter": lambda p, xs: functools.reduce(lambda h, x: step(p, x, h), xs, p["b"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_function_that_has_changed(name: str) -> None:
    changed = renamed(CHANGES[name])
    with pytest.raises(PlanError, match="Plan again"):
        changed.plan(PARAMS, ROWS, like=saved_by(chain))
    refuses(changed, PARAMS, saved_by(chain), "does not fit: the function, its shared arguments .* differ.* Plan again")
    refuses(changed, PARAMS, copied(saved_by(chain)), "Plan again")


@jitbatch
def pick(table: Array, x: Array) -> Array:
    return jnp.asarray(table)[(x > 0).astype(int)]


@pytest.mark.parametrize("large", [False, True])
def test_a_constant_that_has_changed(large: bool) -> None:
    """Large constants are shared values; small ones are rows, which a plan has among its inputs."""

    def with_constant(value: float) -> Any:
        constant = np.full((512, HIDDEN) if large else INPUT, value, np.float32)

        def fun(params: Params, xs: Any) -> Array:
            h = chain(params, xs)
            return h + pick(constant, xs[0, 0]) if large else step(params, constant, h)

        return fun

    plan = saved_by(with_constant(1.0))
    same = jitbatch(with_constant(1.0))
    assert_bits(same.batch(PARAMS, plan), same.batch(PARAMS, same.plan(PARAMS, ROWS)))
    refuses(jitbatch(with_constant(2.0)), PARAMS, plan, "does not fit: the function")


def test_parameters_of_another_shape() -> None:
    plan = saved_by(chain)
    batched = jitbatch(chain)
    assert_bits(batched.batch(PARAMS, plan), batched.batch(PARAMS, batched.plan(PARAMS, ROWS)))
    narrow = {**PARAMS, "h": PARAMS["h"][:, :2]}
    refuses(batched, narrow, plan, r"leaf 1 was float32\[4, 4\], is float32\[4, 2\]. Plan again with these")
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    refuses(batched, half, plan, r"leaf 0 was float32\[4\], is bfloat16\[4\]")
    refuses(batched, {**PARAMS, "more": jnp.ones(2)}, plan, "there were 4 leaves, and are 5")
    refuses(batched, {"y" + name: leaf for name, leaf in PARAMS.items()}, plan, "cannot be recorded")


def test_what_the_function_raises_is_the_cause() -> None:
    def fun(params: Params, xs: Array) -> Array:
        if "broken" in globals():
            raise LookupError("mine")
        return chain(params, xs)

    pickled = saved_by(fun)
    globals()["broken"] = True
    try:
        error = refuses(
            jitbatch(fun), PARAMS, pickled, "cannot be recorded with a sample of it: the function, .*Plan again"
        )
    finally:
        del globals()["broken"]
    assert isinstance(error.__cause__, LookupError)


def test_cells_that_only_identity_tells_apart() -> None:
    """Their names would be equal: a plan that could be restored with the wrong one is not saved."""

    class Scale:
        def __init__(self, value: float):
            self.value = value

        def __repr__(self) -> str:
            return "Scale"

    def scaled(scale: Scale) -> Any:
        fun: Any = jax.custom_jvp(lambda x: x * 1.0)
        fun.defjvp(lambda primals, tangents: (primals[0], scale.value * tangents[0]))
        return fun

    one, other = scaled(Scale(2.0)), scaled(Scale(3.0))
    batched = jitbatch(lambda params, x: one(x) * params + other(x), granularity="op")
    with pytest.raises(PlanError, match="cannot be saved: another differs from it only in objects that have no name"):
        pickle.dumps(batched.plan(jnp.float32(1), [1.0, 2.0]))


def test_what_is_not_known_of_a_restored_plan() -> None:
    again = copied(planned("fused")[0])
    for ask in (lambda: again.sizes, lambda: again.static.program):
        with pytest.raises(PlanError, match=r"unpickled, .*: ask `binary_tree.plan\(shared, samples, like=plan\)`"):
            ask()


# --- What is saved


class Recorded(pickle.Unpickler):
    """Notes what is looked up while something is unpickled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.found.add((module, name))
        return super().find_class(module, name)


@pytest.mark.parametrize("name", ["fused", "keys", "ragged", "method of an nnx module"])
def test_a_pickle_is_small_and_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    pickled = pickle.dumps(CASES[name].plan(like=None))  # in no room of the plans of other tests
    assert len(pickled) < 10_000
    reader = Recorded(io.BytesIO(pickled))
    monkeypatch.setattr("jitbatch.record.context.Context._record", lambda *_: pytest.fail("nothing is run"))
    assert isinstance(reader.load(), Plan)
    assert reader.found == {("jitbatch.plan.plan", "_restore")}


def test_equal_plans_are_saved_as_equal_static_parts() -> None:
    batched = jitbatch(chain)
    one, other = (copied(batched.plan(PARAMS, [scale * rows for rows in ROWS])) for scale in (1.0, 2.0))
    assert one.static == other.static
    assert hash(one.static) == hash(other.static)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert one.static != copied(batched.plan(PARAMS, ROWS[:2])).static
    assert one.static != replace(one.static, content=replace(one.static.content, program="other"))


def test_cases_are_what_they_say() -> None:
    def plan(name: str) -> Any:
        return planned(name)[0]

    assert plan("dispatch").static.executor == plan("ragged dispatch").static.executor == "dispatch"
    assert any(block.kind.is_variadic for block in plan("sums").static.program.blocks)
    assert any(phase.is_static for phase in plan("static loops").static.program.phases if hasattr(phase, "rounds"))
    assert any(graph.constants for graph in plan("constants").static.types.exemplars)
    assert isinstance(CASES["fused"], Case)


# --- What an unpickled plan tells


@pytest.mark.parametrize("name", CASES)
def test_capacity_and_memory_of_a_restored_plan(name: str) -> None:
    plan, _ = planned(name)
    for again in (copied(plan), copied(copied(plan))):
        assert again.memory == plan.memory
        if plan.static.executor == "fused":
            assert again.capacity == plan.capacity
            assert str(again.capacity) == str(plan.capacity)
            assert CASES[name].plan(like=again.capacity).capacity == CASES[name].plan(like=plan.capacity).capacity
        else:
            with pytest.raises(PlanError, match="a plan for the dispatch executor has the sizes of its batch"):
                _ = again.capacity


def test_memory_of_a_plan_that_cannot_be_differentiated() -> None:
    def twice(x: Any) -> Any:
        return jax.pure_callback(lambda v: 2 * np.asarray(v), jax.ShapeDtypeStruct((), np.float32), x, **SEQUENTIAL)

    for executor in ("fused", "dispatch"):
        fun = jitbatch(lambda w, x: twice(w * x), executor=executor)
        plan = fun.plan(jnp.float32(1), [1.0, 2.0])
        assert copied(plan).memory == plan.memory
        assert plan.explain().memory == plan.memory


SEQUENTIAL: Any = {"vmap_method": "sequential"}


def test_memory_of_single_samples_is_not_predicted() -> None:
    with pytest.raises(PlanError, match="nothing predicts its memory"):
        _ = jitbatch(lambda w, x: w * x, executor="per_sample").plan(1.0, [1.0]).memory
