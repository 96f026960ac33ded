"""What `auto` chooses: when another way is bought, that it says so, and that all give the plain loop's answer."""

import itertools
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import assert_same, gradients, named

from jitbatch import Plan, Static, jitbatch
from jitbatch.methods import batched
from jitbatch.tune import auto
from jitbatch.tune.cost import ON_CPU, fused_seconds, load_of, per_sample_seconds, structures_price

WIDTH = 4
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)) / 2, jnp.float32)

# Costs that make one way the fastest of all.
LOOP = {"node": 1.0, "call": 1e-9}
WHOLE = {"call": 1000.0, "node": 1.0, "launch": 1.0, "step": 1.5}
FIRST = {"program": 1e9, "record": 1e9}


@contextmanager
def choosing(patience: float = 0.0, **costs: float) -> Iterator[list[str]]:
    """Known costs with these changed; collects the executor and granularity of every plan that is run."""
    ran: list[str] = []
    known, waits, execute = auto.known_costs, auto.patience, batched.execute

    def noted(plan: Plan, leaves: Any, **options: Any) -> Any:
        ran.append(f"{plan.static.executor} {plan.static.tables.granularity}")
        return execute(plan, leaves, **options)

    auto.known_costs, auto.patience, batched.execute = lambda: replace(ON_CPU, **costs), patience, noted
    try:
        yield ran
    finally:
        auto.known_costs, auto.patience, batched.execute = known, waits, execute


@jitbatch
def cell(weights: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(x @ weights + y)


def chain(weights: Any, xs: list[Any]) -> Any:
    y = xs[0]
    for x in xs[1:]:
        y = cell(weights, x, y)
    return y


def chains(*lengths: int) -> list[list[Any]]:
    rng = np.random.default_rng(sum(lengths))
    return [list(rng.normal(size=(length, WIDTH)).astype(np.float32)) for length in lengths]


def reference(samples: list[Any]) -> Any:
    return jnp.stack([chain(WEIGHTS, sample) for sample in samples])


# --- Never a wrong answer


@pytest.mark.parametrize(
    ("costs", "way"),
    [(LOOP, "per_sample subgraph"), (WHOLE, "fused graph"), (FIRST, "fused subgraph")],
    ids=["loop", "whole", "first"],
)
@pytest.mark.parametrize(
    "name",
    [
        "ints_and_bools",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("binary_tree", "dag", "dropout_keys", "shared_values", "equinox_module")
        ),
    ],
)
def test_batches_of_samples_equal_the_plain_loop(name: str, costs: dict[str, float], way: str) -> None:
    workload = named(name)
    params, samples = workload.draw()
    batched = jitbatch(workload.fun)
    with choosing(**costs, patience=1.0 if costs is FIRST else 0.0) as ran:
        values, grads = gradients(batched.batch, params, samples)
        assert_same(batched.batch(params, samples), workload.loop(params, samples))
    wanted, wanted_grads = gradients(workload.loop, params, samples, transform=jax.jit)
    assert_same(values, wanted)
    assert_same(grads, wanted_grads, rtol=1e-4, atol=1e-5)
    assert set(ran) == {way}


@pytest.mark.parametrize(
    ("costs", "way"), [(LOOP, "per_sample subgraph"), (WHOLE, "fused graph"), (FIRST, "fused subgraph")],
    ids=["loop", "whole", "first"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["ints_and_bools", pytest.param("binary_tree", marks=pytest.mark.slow)])
def test_plans_equal_the_plain_loop(name: str, costs: dict[str, float], way: str) -> None:
    workload = named(name)
    params, samples = workload.draw()
    batched = jitbatch(workload.fun)
    with choosing(**costs, patience=1.0 if costs is FIRST else 0.0) as ran:
        plan = batched.plan(params, samples)
        values, grads = gradients(lambda p, _: batched.batch(p, plan), params, samples, transform=jax.jit)
    wanted, wanted_grads = gradients(workload.loop, params, samples, transform=jax.jit)
    assert_same(values, wanted)
    assert_same(grads, wanted_grads, rtol=1e-4, atol=1e-5)
    assert set(ran) == {way}


def twice(fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda w: jax.grad(fun)(w).sum())


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(jax.jacfwd, id="forward"),
        pytest.param(jax.hessian, id="hessian", marks=pytest.mark.slow),
        pytest.param(twice, id="reverse over reverse"),
        pytest.param(lambda fun: jax.grad(jax.jit(fun)), id="through jit"),
    ],
)
def test_whatever_is_differentiated(transform: Callable[..., Any]) -> None:
    samples, batched = chains(2, 3), jitbatch(chain)
    with choosing(**LOOP) as ran:
        got = transform(lambda w: (batched.batch(w, samples) ** 2).sum())(WEIGHTS)
    wanted = transform(lambda w: sum((chain(w, sample) ** 2).sum() for sample in samples))(WEIGHTS)
    assert_same(got, wanted, rtol=1e-4, atol=1e-5)
    assert set(ran) == {"dispatch subgraph"}  # which serves every order; nothing is bought inside transformations


def test_samples_that_are_differentiated() -> None:
    samples, batched = chains(2, 3), jitbatch(chain)
    with choosing(**LOOP) as ran:
        got = jax.grad(lambda s: batched.batch(WEIGHTS, s).sum())(samples)
    wanted = jax.grad(lambda s: sum(chain(WEIGHTS, sample).sum() for sample in s))(samples)
    assert_same(got, wanted, rtol=1e-4, atol=1e-5)
    assert ran == ["per_sample subgraph"]


@pytest.mark.parametrize("out", [pytest.param("list", marks=pytest.mark.slow), "ragged"])
@pytest.mark.parametrize("costs", [LOOP, WHOLE, FIRST], ids=["loop", "whole", "first"])
def test_other_outputs(out: str, costs: dict[str, float]) -> None:
    def states(weights: Any, xs: list[Any]) -> list[Any]:
        ys = [xs[0]]
        for x in xs[1:]:
            ys.append(cell(weights, x, ys[-1]))
        return ys

    samples, batched = chains(2, 3, 2), jitbatch(states, out=out)
    with choosing(**costs):
        for _ in range(2):
            got: Any = batched.batch(WEIGHTS, samples)
            got = got if out == "list" else got.to_list()
            assert_same(got, [states(WEIGHTS, sample) for sample in samples])


def test_cells_with_effects_stay_where_they_are() -> None:
    seen: list[int] = []

    @jitbatch
    def told(weights: Any, x: Any) -> Any:
        jax.debug.callback(lambda _: seen.append(1), x)
        return x @ weights

    samples = [sample[0] for sample in chains(1, 1, 1)]
    with choosing(**LOOP) as ran:
        told.batch(WEIGHTS, samples)
        jax.effects_barrier()
    assert ran == ["dispatch subgraph"]
    assert len(seen) == 3


def test_no_samples_after_a_choice() -> None:
    batched = jitbatch(chain)
    with choosing(**WHOLE):
        batched.batch(WEIGHTS, chains(2, 2))
        assert batched.batch(WEIGHTS, []).shape == (0, WIDTH)


def test_closing_over_a_tracer() -> None:
    def with_closure(w: Any) -> Any:
        return jitbatch(lambda _, xs: chain(w, xs)).batch(0.0, chains(2, 3)).sum()

    with choosing(**LOOP) as ran:
        got = jax.grad(with_closure)(WEIGHTS)
    wanted = jax.grad(lambda w: sum(chain(w, sample).sum() for sample in chains(2, 3)))(WEIGHTS)
    assert_same(got, wanted, rtol=1e-4, atol=1e-5)
    assert ran == ["dispatch subgraph"]


# --- When something is bought


def calls_until(change: str, run: Callable[[], str], most: int = 10_000) -> int:
    return next(number for number in range(1, most) if change in run())


def test_a_program_is_bought_when_it_would_have_paid() -> None:
    batched, samples = jitbatch(chain, granularity="subgraph"), chains(6)
    cheap = {"program": 5e-3, "equation": 1e-5, "phase": 1e-3}
    with choosing(1.0, **cheap):
        calls = calls_until(" per_sample", lambda: repr(batched.plan(WEIGHTS, samples)))
        again = repr(batched.plan(WEIGHTS, samples))
    (context,) = batched._planner.contexts
    costs, load = replace(ON_CPU, **cheap), load_of(list(context.graphs))
    saving = fused_seconds(load, costs) - per_sample_seconds(load, costs)
    assert calls == math.ceil(structures_price(load, costs) / saving) > 2
    assert "per_sample: one sample; predicted 0.0" in again
    assert f"against {1e3 * fused_seconds(load, costs):.2g} ms" in again


def test_the_same_calls_lead_to_the_same_choices() -> None:
    def history() -> list[str]:
        batched = jitbatch(chain)
        return [repr(batched.plan(WEIGHTS, chains(*lengths))) for lengths in [(3,), (4, 4), (3,), (9,)] * 12]

    with choosing(0.01):
        assert history() == history()


def test_batching_that_pays_is_kept() -> None:
    batched, samples = jitbatch(chain, granularity="subgraph"), chains(*range(2, 22), *range(2, 22))
    with choosing(operation=1e-4):
        assert " fused)" in repr(batched.plan(WEIGHTS, samples))


def test_repeated_batches_are_fused_and_share_programs() -> None:
    batched = jitbatch(chain, granularity="subgraph")
    with choosing(1.0, program=1e-2, equation=1e-5, operation=1e-2) as ran:
        for number in range(40):
            assert_same(
                batched.batch(WEIGHTS, samples := chains(8 + number % 3, 7, 5 + number % 2)), reference(samples)
            )
    assert set(ran) == {"fused subgraph"}
    (context,) = batched._planner.contexts
    assert len({static for static in context.tables.statics if static.out == "rows"}) == 1


def test_many_structures_do_not_get_programs_of_their_own() -> None:
    batched = jitbatch(chain)
    with choosing(**LOOP):
        assert " per_sample" in repr(batched.plan(WEIGHTS, chains(2)))
        batched.plan(WEIGHTS, chains(*range(1, auto.MAX_FEW + 2)))
        assert " fused)" in repr(batched.plan(WEIGHTS, chains(3)))


def test_a_limited_number_of_batches_gets_programs() -> None:
    batched = jitbatch(chain)
    with choosing(**LOOP):
        told = [repr(batched.plan(WEIGHTS, chains(2, *[1] * number))) for number in range(auto.MAX_FEW + 2)]
    assert sum(" per_sample" in one for one in told) == auto.MAX_FEW


def test_what_was_asked_for_is_not_changed() -> None:
    samples = chains(3)
    with choosing(**LOOP) as ran:
        for executor in ("fused", "dispatch", "per_sample"):
            jitbatch(chain, executor=executor, granularity="subgraph").batch(WEIGHTS, samples)
    assert ran == ["fused subgraph", "dispatch subgraph", "per_sample subgraph"]


def test_sizes_are_those_of_the_granularity() -> None:
    """Batches of 7 samples of three cells each, and of 8 whole samples, are of about the same size."""
    batched, samples = jitbatch(chain, executor="fused"), chains(*[4] * 8)
    with choosing(**FIRST, patience=1.0) as ran:
        assert_same(batched.batch(WEIGHTS, samples[:7]), reference(samples[:7]))
    with choosing(**WHOLE) as ran_then:
        assert_same(batched.batch(WEIGHTS, samples), reference(samples))
        assert_same(batched.batch(WEIGHTS, samples), reference(samples))
    assert (ran, ran_then) == (["fused subgraph"], ["fused graph"] * 2)


def test_structures_are_known_under_every_granularity() -> None:
    batched, samples = jitbatch(chain), [tuple(sample) for sample in chains(4, 4)]
    with choosing(**WHOLE):
        for _ in range(3):
            batched.plan(WEIGHTS, samples)
    by_granularity = {context.granularity: context for context in batched._planner.contexts}
    assert set(by_granularity) >= {"subgraph", "graph"}
    for context in by_granularity.values():
        for known in context.structures:
            assert known.graph.tables is context.tables


def test_a_plan_like_another_is_for_the_same_program() -> None:
    batched = jitbatch(chain)
    first = batched.plan(WEIGHTS, chains(3))
    with choosing(**LOOP):
        assert batched.plan(WEIGHTS, chains(3), like=first).static is first.static
        assert batched.plan(WEIGHTS, chains(3), like=first.capacity).static is first.static
        looped = batched.plan(WEIGHTS, chains(4))
        assert looped.static.executor == "per_sample"
        assert batched.plan(WEIGHTS, chains(4), like=looped).static.executor == "per_sample"
        assert batched.plan(WEIGHTS, chains(3, 3), shards=2).static.executor == "fused"


def test_whole_samples_are_saved_and_restored() -> None:
    batched, samples = jitbatch(chain), chains(4, 4, 4)
    with choosing(**WHOLE):
        plan = batched.plan(WEIGHTS, samples)
    assert "fused: whole samples; predicted" in repr(plan)
    restored = pickle.loads(pickle.dumps(plan))
    assert_same(batched.batch(WEIGHTS, restored), reference(samples))
    for like in (plan, restored, plan.capacity, pickle.loads(pickle.dumps(plan.capacity))):
        assert batched.plan(WEIGHTS, samples, like=like).static is plan.static
    other = jitbatch(chain)
    assert other.plan(WEIGHTS, samples, like=plan.capacity).static.tables.granularity == "graph"


def test_operations_are_tried_where_cells_have_no_type_in_common() -> None:
    @jitbatch
    def apply(scale: Any, x: Any, names: Static) -> Any:
        for name in names.value:
            x = getattr(jnp, name)(x)
        return scale * x

    def applied(scale: Any, sample: tuple[Static, Any]) -> Any:
        return apply(scale, sample[1], sample[0])

    orders = itertools.permutations(("tanh", "sin", "cos"))
    samples = [(Static(names), np.float32(number)) for number, names in enumerate(orders)]
    with choosing(step=1.0) as ran:
        got = jitbatch(applied, executor="dispatch").batch(2.0, samples)
    assert_same(got, jnp.stack([applied(2.0, sample) for sample in samples]))
    assert ran == ["dispatch op"]
    with choosing(1.0, step=1.0, record=1e9) as ran:  # recording them does not pay
        jitbatch(applied, executor="dispatch").batch(2.0, samples)
    assert ran == ["dispatch subgraph"]


def test_threads() -> None:
    batched, samples = jitbatch(chain), chains(3, 5)
    wanted, results = reference(samples), []
    with choosing(0.5, program=1e-2, equation=1e-5):
        threads = [
            threading.Thread(target=lambda: results.extend(batched.batch(WEIGHTS, samples) for _ in range(15)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 60
    for result in results:
        assert_same(result, wanted)
