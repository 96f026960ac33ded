"""Known samples: what is looked up by identity has the values of the plain loop, whatever happens to the samples."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from core.cores import CORES, assert_equal_plans

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.core import choice
from jitbatch.execute.fused.layout import TableLayout
from jitbatch.record import context as context_module
from jitbatch.util import static
from jitbatch.util.errors import ArgumentError, OutputError

pytestmark = pytest.mark.skipif("native" not in CORES, reason="there is no compiled core")


class Pair(NamedTuple):
    tree: Any
    values: np.ndarray


def encode(w: Any, sample: Any) -> Any:
    def walk(tree: Any) -> Any:
        return walk(tree[0]) * w + walk(tree[1]) if isinstance(tree, tuple) else tree * w

    return walk(sample.tree) + sample.values.sum()


TREES = [1.0, (1.0, 2.0), ((1.0, 2.0), 3.0), (3.0, (1.0, 2.0))]


def pairs() -> list[Pair]:
    return [Pair(tree, np.arange(3, dtype=np.float32) + number) for number, tree in enumerate(TREES)]


def is_known(f: Any, *args: Any) -> bool:
    call = f._call(args, {})
    return f._planner.context_of(call).samples.find(call.mapped) is not None


def check(f: Any, w: Any, samples: list[Any], **options: Any) -> None:
    """The batch of a plan has the values of the plain loop."""
    wanted = [float(f.__wrapped__(w, sample)) for sample in samples]
    np.testing.assert_allclose(f.batch(w, f.plan(w, samples, **options)), wanted, rtol=1e-6)


def test_samples_that_come_again_are_known() -> None:
    f, samples = jitbatch(encode), pairs()
    assert not is_known(f, 2.0, samples[:3])
    f.plan(2.0, samples[:3])
    assert is_known(f, 2.0, samples[:3])
    assert is_known(f, 2.0, [samples[2], samples[0], samples[2]])
    assert not is_known(f, 2.0, samples)
    assert not is_known(f, np.float32(2), samples[:3])  # other parameters
    assert not is_known(f, 2.0, [Pair(*sample) for sample in samples[:3]])  # equal, but others
    assert not is_known(f, 2.0, tuple(samples[:3]))
    f.plan(2.0, tuple(samples[:3]))
    clear_caches()
    assert not is_known(f, 2.0, samples[:3])


@pytest.mark.parametrize("out", ["stack", "list"])
@pytest.mark.parametrize("dedupe", [True, False])
def test_a_plan_of_known_samples_is_that_of_equal_ones(out: str, dedupe: bool) -> None:
    f, samples = jitbatch(encode, out=out, dedupe=dedupe, executor="fused"), pairs()
    like = f.plan(2.0, samples)
    for chosen in (samples, samples[::-1], samples[:1] * 4):
        known = f.plan(2.0, chosen, like=like)
        assert known.static is like.static
        assert_equal_plans(known, f.plan(2.0, [Pair(*sample) for sample in chosen], like=like))
        with choice.using("python"):
            assert_equal_plans(known, f.plan(2.0, chosen, like=like))


def test_a_program_of_the_other_core_is_filled_by_that_core() -> None:
    f, samples = jitbatch(encode, executor="fused"), pairs()
    with choice.using("python"):
        like = f.plan(2.0, samples)
    f.plan(2.0, samples)
    assert is_known(f, 2.0, samples)
    plan = f.plan(2.0, samples[::-1], like=like)
    assert plan.static is like.static
    assert_equal_plans(plan, f.plan(2.0, [Pair(*sample) for sample in samples[::-1]], like=like))


def test_numbers_in_arrays_are_read_for_each_batch() -> None:
    f, samples = jitbatch(encode), pairs()
    for step in range(3):
        check(f, 2.0, samples)
        assert is_known(f, 2.0, samples)
        for sample in samples:
            sample.values[:] += 10 * step + 1
    check(f, 2.0, samples)


def test_an_array_that_takes_another_shape_is_another_structure() -> None:
    f = jitbatch(lambda w, sample: w * sample.values.shape[0] + sample.values.sum())
    sample = Pair(1.0, np.zeros((2, 3), np.float32))
    check(f, 2.0, [sample])
    assert is_known(f, 2.0, [sample])
    for shape in ((3, 2), (6,), (6, 1), (2, 3)):
        sample.values.shape = shape
        assert not is_known(f, 2.0, [sample])
        check(f, 2.0, [sample])
        assert is_known(f, 2.0, [sample])


def test_an_array_that_takes_another_dtype_is_another_structure() -> None:
    f, sample = jitbatch(encode), Pair(1.0, np.float32([1.0, 2.0]))
    check(f, 2.0, [sample])
    for dtype in (np.int32, np.uint32, np.float32):
        sample.values.dtype = np.dtype(dtype)
        sample.values[:] = 3
        assert not is_known(f, 2.0, [sample])
        check(f, 2.0, [sample])
        assert is_known(f, 2.0, [sample])


def test_a_sample_that_comes_twice_has_two_results_in_a_list() -> None:
    """Although a program for one has room for both, which are one call."""
    f, samples = jitbatch(encode, out="list", executor="fused"), pairs()[1:2]
    like = f.plan(2.0, samples)
    once, *twice = f.batch(2.0, like), *f.batch(2.0, f.plan(2.0, samples * 2, like=like))
    assert [float(result) for result in twice] == [float(once[0])] * 2


def test_results_of_several_trees_cannot_be_stacked() -> None:
    def fun(w: Any, sample: Any) -> Any:
        result = jnp.sin(w * sample[0])
        return {"result": result} if sample[1].value else (result,)

    f, samples = jitbatch(fun, executor="fused"), [(1.0, Static(True)), (1.0, Static(False))]
    for sample in samples:
        like = f.plan(2.0, [sample, sample])
    assert is_known(f, 2.0, samples)
    for chosen in (samples, samples[::-1]):
        with pytest.raises(OutputError, match="cannot be stacked"):
            f.plan(2.0, chosen, like=like)


def test_other_plans_while_a_program_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples forget graphs in terms of types that were not used lately: as if other threads planned meanwhile."""
    cells = [jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.sinh, jnp.cosh, jnp.tan, jnp.arctan]
    f = jitbatch(lambda w, sample: cells[sample[1].value](w * sample[0]), executor="fused")
    samples = [(1.0, Static(number)) for number in range(8)]
    likes = [f.plan(2.0, [samples[0], sample]) for sample in samples]
    refill = TableLayout.refill

    def refill_late(layout: TableLayout) -> Any:
        monkeypatch.setattr(TableLayout, "refill", refill)
        for like in likes[1:]:
            f.plan(2.0, samples[:1], like=like)
        return refill(layout)

    monkeypatch.setattr(TableLayout, "refill", refill_late)
    plan = f.plan(2.0, samples[:1], like=likes[0])
    assert TableLayout.refill is refill
    np.testing.assert_allclose(f.batch(2.0, plan), [np.sin(2.0)], rtol=1e-6)


def test_arrays_that_the_core_cannot_export() -> None:
    """Nothing is known of strided ones in the core."""
    f, sample = jitbatch(encode), Pair(1.0, np.arange(6, dtype=np.float32)[::2])
    for step in range(3):
        check(f, 2.0, [sample, *pairs()])
        assert not is_known(f, 2.0, [sample])
        sample.values[:] = step


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64, np.complex128])
def test_arrays_of_wider_dtypes_than_their_rows(dtype: Any) -> None:
    """NumPy's defaults are wider than JAX's types."""
    f = jitbatch(lambda w, sample: jnp.sum(w * sample[0]) + sample[1])
    many = [0, 1, 2**31 - 1] if np.dtype(dtype).kind in "iu" else [0.1, -0.0, 1 / 3]
    wide = np.array(many, dtype)
    samples = [(wide + dtype(number), np.float64(number) / 3, dtype(7)) for number in range(3)]
    for step in range(3):
        with choice.using("python"):
            wanted = f.plan(1, [(array.astype(dtype), *rest) for array, *rest in samples])
        plan = f.plan(1, samples)
        assert is_known(f, 1, samples)
        assert_equal_plans(f.plan(1, samples, like=wanted), wanted)
        for ours, theirs in zip(plan.rows, wanted.rows, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        samples[0][0][:] += dtype(step)


def test_integers_that_are_too_wide_lose_their_upper_half_as_in_jax() -> None:
    f = jitbatch(lambda w, sample: w + sample[0].sum() + sample[1])
    samples = [(np.array([2**40 + 5, -1 - 2**35]), np.int64(2**33 + 9))]
    for _ in range(3):
        assert f.batch(0, f.plan(0, samples)).tolist() == [5 - 1 + 9]


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_lists_and_dicts_are_known_while_they_have_the_same_items(kind: str) -> None:
    def walk(w: Any, tree: Any) -> Any:
        if not isinstance(tree, list | dict):
            return jnp.sum(tree * w)
        parts = tree.values() if isinstance(tree, dict) else tree
        return sum([walk(w, part) * (place + 1) for place, part in enumerate(parts)], jnp.float32(0))

    def of(*parts: Any) -> Any:
        return list(parts) if kind == "list" else {"zyx"[place]: part for place, part in enumerate(parts)}

    f = jitbatch(walk)
    samples = [of(1.0, of(2.0, np.float32([3, 4]))), of(5.0, of())]
    key = 0 if kind == "list" else "z"
    for step in range(3):
        check(f, 2.0, samples)
        assert is_known(f, 2.0, samples)
        samples[0][key] = 10.0 * step
        assert not is_known(f, 2.0, samples)
        assert is_known(f, 2.0, samples[1:])
        check(f, 2.0, samples)
        assert is_known(f, 2.0, samples)
        samples[1][key] = of(samples[1][key], 7.0)  # one more part
        assert not is_known(f, 2.0, samples)
        check(f, 2.0, samples)
        samples[1][key][key] = float(step)  # inside of a nested one
        assert not is_known(f, 2.0, samples)
    equal = [of(*(sample if kind == "list" else sample.values())) for sample in samples]
    check(f, 2.0, equal)
    check(f, 2.0, samples)


def test_a_number_that_is_replaced_by_an_equal_one_of_another_type() -> None:
    f, sample = jitbatch(lambda w, sample: sample[0] / 2 * w if sample[0].dtype == jnp.float32 else w - 1), [3]
    for number in (3, 3.0, 3, True, 3.0):
        sample[0] = number
        for _ in range(2):
            assert f.batch(2.0, f.plan(2.0, [sample])).tolist() == [3.0 if type(number) is float else 1.0]


def test_scalars_and_constants_in_the_code() -> None:
    table = np.float32([1.0, 2.0])

    def fun(w: Any, sample: Any) -> Any:
        return jnp.sum(w * sample[0] + jnp.asarray(table)) * sample[1]

    f, samples = jitbatch(fun), [(np.float32(number), number) for number in range(3)]
    wanted = [float(fun(2.0, sample)) for sample in samples]
    for _ in range(3):
        np.testing.assert_allclose(f.batch(2.0, samples), wanted)
        np.testing.assert_allclose(f.batch(2.0, f.plan(2.0, samples)), wanted)
        table[:] = 100.0  # a recording is not changed by this
    assert is_known(f, 2.0, samples)


def test_static_values_decide() -> None:
    f = jitbatch(lambda w, sample: w * sample[1] ** sample[0].value)
    samples = [(Static(power), 3.0) for power in (1, 2, 3)]
    for chosen in (samples, samples[::-1], samples[1:]):
        for _ in range(2):
            np.testing.assert_allclose(f.batch(2.0, f.plan(2.0, chosen)), [2 * 3.0 ** s[0].value for s in chosen])


def test_several_mapped_arguments() -> None:
    f = jitbatch(lambda w, x, y: w * x[0] - y[0])
    xs, ys = [(1.0,), (2.0,), (3.0,)], [(10.0,), (20.0,), (30.0,)]
    f.plan(2.0, xs, ys)
    assert is_known(f, 2.0, xs, ys)
    assert not is_known(f, 2.0, xs, ys[::-1])  # each is known, but not with the other
    for _ in range(2):
        np.testing.assert_allclose(f.batch(2.0, f.plan(2.0, xs, ys[::-1])), [-28.0, -16.0, -4.0])
        np.testing.assert_allclose(f.batch(2.0, f.plan(2.0, ys, xs)), [19.0, 38.0, 57.0])
    with pytest.raises(ArgumentError, match="has 3"):
        f.plan(2.0, xs, ys[:2])


def test_shapes_of_parameters_decide() -> None:
    f = jitbatch(lambda w, sample: (w["v"] * sample[0]).sum() if w["v"].ndim else w["v"] * sample[0] - 1)
    samples = [(1.0,), (2.0,)]
    for _ in range(2):
        for v in (jnp.float32(3), jnp.ones(2), jnp.ones(3), jnp.ones(3, jnp.int32)):
            wanted = [float(f.__wrapped__({"v": v}, sample)) for sample in samples]
            np.testing.assert_allclose(f.batch({"v": v}, f.plan({"v": v}, samples)), wanted)


def test_samples_at_places_of_others_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 3)
    monkeypatch.setattr(context_module, "MAX_SAMPLES", 5)
    f = jitbatch(lambda w, sample: w * sample[0] if len(sample) == 1 else w * sample[0] + sample[1])
    places = set()
    for number in range(400):
        samples = [(float(number),), (float(number), 1.0)]
        places.update(map(id, samples))
        for _ in range(2):
            np.testing.assert_allclose(f.batch(2.0, f.plan(2.0, samples)), [2.0 * number, 2.0 * number + 1])
        del samples
    assert len(places) < 800  # some came where others had been


def test_samples_that_are_used_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core finds them, and those that it did not find make room."""
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 4)
    f = jitbatch(lambda w, sample: w * sample[0])
    kept = [(1.0,), (2.0,)]
    f.plan(2.0, kept)
    passing = [(float(number),) for number in range(20)]
    for sample in passing:
        assert is_known(f, 2.0, kept)
        f.plan(2.0, [sample])
    assert is_known(f, 2.0, kept)
    (context,) = f._planner.contexts
    assert len(context.samples) == len(context.samples._core) == 4
    assert not is_known(f, 2.0, passing[:1])


def test_what_is_dropped_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 2)
    f, gone = jitbatch(encode), []
    for number in range(5):
        values = np.full(number + 1, 1.0, np.float32)
        gone.append(weakref.ref(values))
        f.plan(2.0, [Pair(1.0, values)])
        del values
    gc.collect()
    assert [one() is None for one in gone] == [True] * 3 + [False] * 2
    clear_caches()
    gc.collect()
    assert all(one() is None for one in gone)


def test_a_function_that_its_samples_refer_to_is_let_go() -> None:
    """The core's references are seen by the garbage collector."""
    f = jitbatch(lambda w, sample: w * sample[1])
    samples = [(Static(f), 1.0)]
    f.plan(2.0, samples)
    assert is_known(f, 2.0, samples)
    gone = weakref.ref(f)
    del f, samples
    static._interned.clear()
    gc.collect()
    assert gone() is None


def test_threads_plan_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others drop them, clear caches and change arrays between batches of their own."""
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 6)
    f, shared = jitbatch(encode), pairs()
    check(f, 2.0, shared)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        own = [Pair(TREES[number], np.full(3, float(number), np.float32))]
        try:
            for step in range(60):
                own[0].values[:] = step
                check(f, 2.0, [*shared, *own], like=None if step % 7 == 0 else "auto")
                if number == 0 and step % 10 == 9:
                    clear_caches()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# The border


class _Made(NamedTuple):
    structure: Any = "structure"
    sample: Any = ("part",)
    graph: Any = "graph"
    nodes: Any = 1
    results: Any = 1
    output: Any = 0
    containers: Any = ()
    arrays: Any = ()
    inputs: Any = ()
    formats: Any = (("f", 4, 4),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"containers": [([], ()), ((), ())]},
        {"containers": [([], [])]},
        {"containers": [([],)]},
        {"arrays": [1.0]},
        {"arrays": [np.zeros(4)[::2]]},
        {"arrays": [np.array(["text"])]},
        {"arrays": [np.zeros(2, ">f4")]},
        {"inputs": [(0, [np.zeros(2, np.float16)])]},
        {"inputs": [(0, [np.zeros(2, int)])]},
        {"inputs": [(0, ["text"])]},
        {"inputs": [(1, [np.zeros(2, np.float32)])]},
        {"inputs": [(-1, [np.zeros(2, np.float32)])]},
        {"inputs": [(0,)]},
        {"formats": [("f", 4)], "inputs": [(0, [np.zeros(2, np.float32)])]},
    ],
)
def test_samples_that_the_core_cannot_read_are_not_put(wrong: dict[str, Any]) -> None:
    known = choice.native.KnownSamples()  # type: ignore[union-attr]
    assert not known.put(**_Made(**wrong)._asdict())
    assert len(known) == 0
    assert known.put(**_Made()._asdict())
    assert not known.put(**_Made()._asdict())  # known already
    assert len(known) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"containers": 5}, {"containers": [3]}, {"arrays": 5},
     {"inputs": None}, {"inputs": [3]}, {"sample": 7}, {"nodes": "many"}, {"nodes": 2**40},
     {"inputs": [("a", [])]}, {"formats": [(5, 4, 4)], "inputs": [(0, [np.zeros(1, np.float32)])]}],
)  # fmt: skip
def test_what_is_no_sample_raises(wrong: dict[str, Any]) -> None:
    known = choice.native.KnownSamples()  # type: ignore[union-attr]
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        known.put(**_Made(**wrong)._asdict())
    assert len(known) == 0


def test_only_lists_are_found() -> None:
    known = choice.native.KnownSamples()  # type: ignore[union-attr]
    part, other = object(), object()
    assert known.put(**_Made(sample=(part,))._asdict())
    assert len(known.find([[part, part]])) == 2
    for columns in ([], [[]], [(part,)], [[other]], [[part, other]], [[part], [part]], [[part], [part, part]], [5]):
        assert known.find(columns) is None
    with pytest.raises(TypeError):
        known.find(5)
    assert known.take_used((part,))
    assert not known.take_used((part,))
    assert not known.take_used((other,))
    known.discard((other,))
    known.discard((part,))
    assert len(known) == 0
    assert known.find([[part]]) is None


def test_many_come_and_go() -> None:
    """Every sample is found while it is there, and only then."""
    known = choice.native.KnownSamples()  # type: ignore[union-attr]
    rng, there, parts = np.random.default_rng(0), set[int](), [object() for _ in range(500)]
    for number in rng.integers(0, 500, 5000).tolist():
        if number in there:
            known.discard((parts[number],))
            there.remove(number)
        else:
            assert known.put(**_Made(structure=parts[number], sample=(parts[number],))._asdict())
            there.add(number)
    assert len(known) == len(there)
    for number, part in enumerate(parts):
        found = known.find([[part]])
        assert (found is not None) == (number in there)
        if found is not None:
            assert found.structures() == [part]
