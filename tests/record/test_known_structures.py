"""Samples that the compiled core reads: they have the plans of the reference, and the values of the plain loop."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cores import CORES, assert_equal_plans

from jitbatch import Static, clear_caches, jitbatch
from jitbatch.core import choice
from jitbatch.execute.fused.layout import TableLayout
from jitbatch.record import context as context_module
from jitbatch.record.structure import Structure
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
    """Whether the core reads the samples, and has met their structures."""
    call = f._call(args, {})
    structures = f._planner.context_of(call).structures
    read = structures.read(call.mapped)
    return read is not None and structures.find(read) is not None


def check(f: Any, w: Any, samples: list[Any], **options: Any) -> None:
    """The batch of a plan has the values of the plain loop."""
    wanted = [float(f.__wrapped__(w, sample)) for sample in samples]
    np.testing.assert_allclose(f.batch(w, f.plan(w, samples, **options)), wanted, rtol=1e-6)


def test_structures_that_come_again_are_known() -> None:
    f, samples = jitbatch(encode), pairs()
    assert not is_known(f, 2.0, samples[:3])
    f.plan(2.0, samples[:3])
    assert is_known(f, 2.0, samples[:3])
    assert is_known(f, 2.0, [samples[2], samples[0], samples[2]])
    assert is_known(f, 2.0, [Pair(*sample) for sample in pairs()[:3]])  # other objects
    assert not is_known(f, 2.0, samples)
    assert not is_known(f, np.float32(2), samples[:3])  # other parameters
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
    for shape in ((3, 2), (6,), (6, 1)):
        sample.values.shape = shape
        assert not is_known(f, 2.0, [sample])
        check(f, 2.0, [sample])
        assert is_known(f, 2.0, [sample])


def test_an_array_that_takes_another_dtype_is_another_structure() -> None:
    f, sample = jitbatch(encode), Pair(1.0, np.float32([1.0, 2.0]))
    check(f, 2.0, [sample])
    for dtype in (np.int32, np.uint32, np.float16):
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
def test_lists_and_dicts_may_change(kind: str) -> None:
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
        assert is_known(f, 2.0, samples)
        check(f, 2.0, samples)
        samples[1][key] = of(samples[1][key], 7.0)  # one more part
        check(f, 2.0, samples)
        samples[1][key][key] = float(step)  # inside of a nested one
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
    assert is_known(f, 2.0, xs, ys[::-1])
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
    f = jitbatch(lambda w, sample: w * sample[0] if len(sample) == 1 else w * sample[0] + sample[1])
    places = set()
    for number in range(400):
        samples = [(float(number),), (float(number), 1.0)]
        places.update(map(id, samples))
        for _ in range(2):
            np.testing.assert_allclose(f.batch(2.0, f.plan(2.0, samples)), [2.0 * number, 2.0 * number + 1])
        del samples
    assert len(places) < 800  # some came where others had been


def test_structures_that_are_used_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core finds them, and those that it did not find make room."""
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 4)
    f = jitbatch(lambda w, sample: w * sample[0])
    kept = [(1.0,), (2.0, 3.0)]
    f.plan(2.0, kept)
    passing = [(1.0,) * length for length in range(3, 20)]
    for sample in passing:
        assert is_known(f, 2.0, kept)
        f.plan(2.0, [sample])
    assert is_known(f, 2.0, kept)
    (context,) = f._planner.contexts
    assert len(context.structures) == len(context.structures._core) == 4
    assert not is_known(f, 2.0, passing[:1])


def test_more_structures_are_kept_once_one_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "FIRST_STRUCTURES", 2)
    f = jitbatch(lambda w, sample: w * sample[0])
    epoch = [(1.0,) * length for length in range(1, 6)]
    for known in (2, 5, 5):
        f.plan(2.0, epoch)
        (context,) = f._planner.contexts
        assert context.structures.info().currsize == known
    assert is_known(f, 2.0, epoch)


def test_samples_are_let_go() -> None:
    f, gone = jitbatch(encode), []
    for number in range(5):
        values = np.full(number + 1, 1.0, np.float32)
        gone.append(weakref.ref(values))
        for _ in range(2):
            f.plan(2.0, [Pair(1.0, values)])
        del values
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


# What is read


class Own(NamedTuple):
    """A named tuple that is taken apart in a way of its own."""

    number: float


jax.tree_util.register_pytree_node(Own, lambda own: ((own.number + 1,), None), lambda _, items: Own(*items))


class OwnFloat(np.float32):
    """A class that may be anything."""


class Numbers(NamedTuple):
    number: float
    array: Any


class SameNumbers(NamedTuple):
    number: float
    array: Any


X = np.float32([1.0, 2.0])
READ = [
    1, 1.0, True, None, (), [], {}, X, X[:1], X.astype(np.int32), X.astype(np.float64), X.reshape(1, 2), np.float32(1),
    np.array(1.0), jnp.float32(1), jnp.asarray(1.0), jnp.ones(2), (1.0, (2.0, 3.0)), ((1.0, 2.0), 3.0), (1.0, 2.0),
    [1.0, 2.0], [1.0, (2.0,)], {"a": 1.0}, {"b": 1.0}, {"a": 1.0, "b": 2}, {"b": 2, "a": 1.0}, {"b": 1, "a": 1.0},
    {"é": 1.0, "z": 2.0, "\U0001f600": 1}, Static(1), Static(2), Static("a"), Static(0.0), Static(-0.0),
    (Static("a"), Static("b")), (Static("b"), Static("a")), Numbers(1.0, X), SameNumbers(1.0, X),
    Numbers((1.0, None), [X]), (1.0,) * 300, [{"a": [X, {}], "A": None}, 2], {"": 1.0}, {"": {"": 1.0}},
]  # fmt: skip


def encoding_of(sample: Any) -> bytes | None:
    read = choice.native.read_samples([[sample]])  # type: ignore[union-attr]
    return None if read is None else read.encodings()[0]


def test_encodings_are_equal_for_equal_keys_and_only_then() -> None:
    keys = [Structure((sample,), 0, ["sample"]).key for sample in READ]
    encodings = list(map(encoding_of, READ))
    assert None not in encodings
    for key, encoding in zip(keys, encodings, strict=True):
        assert [other == key for other in keys] == [other == encoding for other in encodings]


@pytest.mark.parametrize("sample", READ, ids=repr)
def test_encodings_of_keys_are_those_of_samples(sample: Any) -> None:
    """Whatever the values of leaves are."""
    structure = Structure((sample,), 0, ["sample"])
    rebuilt = structure.key[0].unflatten(structure.leaves)
    encoding, _ = choice.native.encode_sample(rebuilt, structure.leaves)  # type: ignore[union-attr]
    assert encoding == encoding_of(sample)
    assert encoding == encoding_of(pickle.loads(pickle.dumps(sample)))


@pytest.mark.parametrize(
    "sample",
    [Own(1), (1.0, Own(2)), [Own(1)], OrderedDict(a=1), defaultdict(list), {1: 2.0}, {("a",): 2.0}, {"\ud800": 1.0},
     2**70, 1j, "text", np.array(["text"]), np.zeros(2, ">f4"), np.arange(6.0)[::2], np.zeros(2, "M8[s]"), OwnFloat(1),
     np.ma.ones(2), jnp.ones(2, jnp.bfloat16), jax.random.key(0), jax.ShapeDtypeStruct((), np.float32), object()],
    ids=lambda sample: f"{type(sample).__name__} {sample}" if type(sample) is not object else "object",
)  # fmt: skip
def test_samples_that_are_left_to_python(sample: Any) -> None:
    assert encoding_of(sample) is None
    assert encoding_of((1.0, [X, sample])) is None


def test_samples_of_many_parts_are_left_to_python() -> None:
    shared: Any = (1.0, 2.0)
    for _ in range(30):
        shared = (shared, shared)
    assert encoding_of(shared) is None
    circle: list[Any] = []
    circle.append(circle)
    assert encoding_of(circle) is None
    deep: Any = 1.0
    for _ in range(100_000):
        deep = (deep,)
    assert encoding_of(deep) is not None


def test_numbers_that_do_not_fit_are_left_to_numpy() -> None:
    f = jitbatch(lambda w, sample: w * sample[0])
    for number, other in ((1, 2**40), (1.0, 1e300)):
        f.plan(2.0, [(number,)])
        assert is_known(f, 2.0, [(number,)])
        assert not is_known(f, 2.0, [(other,)])
    with pytest.raises(OverflowError):
        f.plan(2.0, [(2**40,)])
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert f.batch(2.0, f.plan(2.0, [(1e300,)])).tolist() == [np.inf]
    for number in (np.inf, -np.inf, 3e38, -0.0, 1e-30):
        assert is_known(f, 2.0, [(number,)])
        (got,) = f.batch(jnp.float32(1), f.plan(jnp.float32(1), [(number,)]))
        assert np.float32(got).tobytes() == np.float32(number).tobytes()


@pytest.mark.parametrize("is_wide", [False, True])
def test_numbers_of_all_kinds(is_wide: bool) -> None:
    def fun(w: Any, sample: Any) -> Any:
        return w * sample["x"] + jnp.where(sample["flag"], sample["count"], 0.5) + sample["z"][0].sum()

    with jax.enable_x64(is_wide):
        f = jitbatch(fun, executor="fused")
        samples: Any = [
            {"z": [jnp.arange(3.0) + number], "x": number / 3, "flag": number % 2 == 0, "count": number - 1}
            for number in range(4)
        ]
        with choice.using("python"):
            like = f.plan(2.0, samples)
            wanted = f.plan(2.0, samples, like=like)
        for _ in range(2):
            got = f.plan(2.0, samples)
            assert is_known(f, 2.0, samples)
            for ours, theirs in zip(got.rows, wanted.rows, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            check(f, 2.0, samples)


def test_a_deleted_array_is_an_error() -> None:
    f, array = jitbatch(lambda w, sample: w * sample[0].sum()), jnp.ones(3)
    f.plan(2.0, [(array,)])
    assert is_known(f, 2.0, [(array,)])
    array.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        f.plan(2.0, [(array,)])


def test_samples_that_change_while_they_are_read() -> None:
    """The values of `Static` objects are the user's, and run code when they are compared."""
    sample: list[Any] = []

    class Clearing:
        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            sample.clear()
            return isinstance(other, Clearing)

    f = jitbatch(lambda w, sample: w * sample[-1])
    keeps = Static(Clearing())
    f.plan(2.0, [(keeps, 1.0)])
    sample += [Static(Clearing()), [1.0], 2.0]
    assert encoding_of(sample) is None
    assert sample == []


# The border


def put(known: Any, **changed: Any) -> bool:
    wanted = {
        "encoding": encoding_of(1.0), "graph": "graph", "nodes": 1, "results": 1, "output": 0, "leaves": 1,
        "takes": [(0, ("f", 4, 4), [0])], "constants": [],
    }  # fmt: skip
    return known.put(**{**wanted, **changed})


@pytest.mark.parametrize(
    "wrong",
    [{"takes": [(0, ("f", 4, 4), [1])]}, {"takes": [(0, ("f", 4, 4), [-1])]}, {"takes": [(0, ("f", 4), [0])]},
     {"takes": 5}, {"nodes": "many"}, {"nodes": 2**40}, {"encoding": "text"}, {"constants": ["text"]},
     {"leaves": -1}],
)  # fmt: skip
def test_what_is_no_structure_raises(wrong: dict[str, Any]) -> None:
    known = choice.native.KnownStructures()  # type: ignore[union-attr]
    with pytest.raises((TypeError, ValueError)):
        put(known, **wrong)
    assert len(known) == 0


def test_structures_come_and_go() -> None:
    known = choice.native.KnownStructures()  # type: ignore[union-attr]
    encoding = encoding_of(1.0)
    assert put(known)
    assert not put(known)
    read = choice.native.read_samples([[1.0, 2.0]])  # type: ignore[union-attr]
    batch = known.find(read)
    assert (len(batch), batch.nodes, batch.results, batch.output) == (2, 2, 2, 0)
    assert batch.graphs() == ("graph", "graph")
    assert known.take_used(encoding)
    assert not known.take_used(encoding)
    assert not known.take_used(b"other")
    known.discard(b"other")
    known.discard(encoding)
    assert len(known) == 0
    assert known.find(read) is None


@pytest.mark.parametrize("wrong", [{"leaves": 2}, {"leaves": 0, "takes": []}])
def test_a_sample_has_the_leaves_of_its_structure(wrong: dict[str, Any]) -> None:
    known = choice.native.KnownStructures()  # type: ignore[union-attr]
    assert put(known, **wrong)
    with pytest.raises(ValueError, match="the leaves of its structure"):
        known.find(choice.native.read_samples([[1.0]]))  # type: ignore[union-attr]


def test_only_lists_are_read() -> None:
    read = choice.native.read_samples  # type: ignore[union-attr]
    assert len(read([[1.0, 2.0]])) == 2
    assert read([[1.0, 2.0], [1.0, 2.0]]).encodings() == [encoding_of_parts(1.0, 1.0)] * 2
    for columns in ([], [[]], [(1.0,)], [[1.0], [1.0, 2.0]], [5]):
        assert read(columns) is None
    with pytest.raises(TypeError):
        read(5)


def encoding_of_parts(*parts: Any) -> bytes:
    return choice.native.read_samples([[part] for part in parts]).encodings()[0]  # type: ignore[union-attr]


def test_leaves_in_another_order_have_no_encoding() -> None:
    encode_sample = choice.native.encode_sample  # type: ignore[union-attr]
    one, two = 1.5, 2.5
    assert encode_sample(((one, two),), [one, two]) is not None
    for leaves in ([two, one], [one], [one, two, one], []):
        assert encode_sample(((one, two),), leaves) is None
