"""Run by `test_step_processes` in two processes of two devices each: steps against the plain loop. Prints the names of
what was checked.

    python process_steps.py PROCESS PROCESSES PORT CHECK...
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax

PROCESS, PROCESSES, PORT, *CHECKS = sys.argv[1:]
HEARTBEAT = 10
ADDRESS = f"127.0.0.1:{PORT}"
jax.distributed.initialize(  # before the first computation, which may be in what is imported below
    ADDRESS, int(PROCESSES), int(PROCESS), coordinator_bind_address=ADDRESS, heartbeat_timeout_seconds=HEARTBEAT
)

import equinox as eqx  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from flax import nnx  # noqa: E402
from jax import Array  # noqa: E402
from mesh_steps import PARAMS, at_each_node, body, logits, loss_of, minibatch, noisy, update  # noqa: E402
from zoo import assert_same  # noqa: E402

import jitbatch as jb  # noqa: E402
from jitbatch import jitbatch  # noqa: E402
from jitbatch.data import local  # noqa: E402
from jitbatch.step import watch  # noqa: E402
from jitbatch.util import compat  # noqa: E402
from jitbatch.util.errors import ArgumentError, ProcessError  # noqa: E402


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((jax.device_count(),), ("data",))


def mine(minibatches: Any) -> Iterator[Any]:
    return local(minibatches, seed=None)


def local_value(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def plain_loss(params: Any, trees: Any, labels: Any) -> Array:
    return loss_of(jnp.stack([logits(params, tree) for tree in trees]), labels)


def values_and_terms() -> None:
    """Even and uneven parts, none on one process; planned in calls, then ahead in a thread. One program serves
    minibatches of one size."""
    batches = [minibatch(count, seed) for seed, count in enumerate((8, 8, 5, 1))]
    step = jb.jit(body, mesh=mesh(), samples="trees", rows="labels")
    want = [PARAMS]
    for trees, labels in batches:
        gradients = jax.grad(lambda p, trees=trees, labels=labels: plain_loss(p, trees, labels))(want[-1])
        want.append(update(want[-1], gradients))
    for ahead in (None, 2):
        params: Any = PARAMS
        items = mine(batches) if ahead is None else step.prefetch(mine(batches), ahead=ahead)
        for item, expected in zip(items, want[1:], strict=True):
            params, _ = step(params, *item)
            assert_same(local_value(params), expected, rtol=1e-4, atol=1e-5)
    # All processes have one capacity, and another step that begins with it needs nothing new.
    again = jb.jit(body, mesh=mesh(), samples="trees", rows="labels")
    again.capacity = jb.StepCapacity.from_json(step.capacity.to_json())
    params = PARAMS
    for trees, labels in mine(batches):
        params, _ = again(params, trees, labels)
    assert again.capacity == step.capacity


def uneven_parts() -> None:
    """One sample in the first call, then five: process 0 has none at first, and learns from an example."""
    for names in ("xs", ()):
        step = jb.jit(lambda scale, xs, ys: (scaled.batch(scale, xs) * ys).sum(), mesh=mesh(), samples=names, rows="ys")
        for count in (1, 5, 1):
            xs, ys = [float(x) for x in range(1, count + 1)], np.arange(1, count + 1, dtype=np.float32)
            ((own, labels),) = mine([(xs, ys)])
            assert float(step(3.0, own, labels)) == 3 * sum(x * y for x, y in zip(xs, ys, strict=True))
        assert step.cache_info()["programs"].misses == 2, "one program for each number of samples of a shard"


@jitbatch
def scaled(scale: Any, x: Any) -> Any:
    return scale * x


def ragged_and_keys() -> None:
    """Ragged results, random keys, and two minibatches in a step."""

    def both(params: Any, trees: Any, keys: Any, others: Any) -> Any:
        def loss(params: Any) -> Array:
            found = at_each_node.batch(params, trees)
            return jnp.sin(found.sum()).sum() + noisy.batch(params, trees, keys).sum()

        total = jax.grad(lambda p: jnp.sin(logits.batch(p, others)).sum())(params)
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params))

    trees, others = minibatch(5, 4)[0], minibatch(6, 1)[0]
    keys = list(jax.random.split(jax.random.key(0), 5))

    def plain_total(params: Any) -> Any:
        total: Any = sum(jnp.sin(logits(params, tree)).sum() for tree in others)
        for tree, key in zip(trees, keys, strict=True):
            total += jnp.sin(sum(at_each_node(params, tree))).sum() + noisy(params, tree, key).sum()
        return total

    (part,) = mine([(trees, keys)])
    (rest,) = mine([(others,)])
    got = jb.jit(both, mesh=mesh())(PARAMS, *part, *rest)
    assert_same(local_value(got), jax.grad(plain_total)(PARAMS), rtol=1e-4, atol=1e-5)


@jitbatch
def negated(params: Any, h: Array) -> Array:
    return -h * params["embed"][0]


@jitbatch
def with_marks(params: Any, tree: Any) -> Array:
    def encode(tree: Any) -> Array:
        if isinstance(tree, list):
            return negated(params, encode(tree[0]))
        if isinstance(tree, tuple):
            return jnp.tanh(encode(tree[0]) @ params["left"] + encode(tree[1]) @ params["right"])
        return params["embed"][tree]

    return encode(tree) @ params["out"]


def new_cell_type() -> None:
    """A cell type that one process meets first is in the program of all."""

    @jb.jit(mesh=mesh(), samples="trees", pad=4)
    def step(params: Any, trees: Any) -> Any:
        return jax.grad(lambda p: jnp.vdot(jnp.sin(with_marks.batch(p, trees)).sum(axis=1), trees.mask))(params)

    for trees in ([(1, 2), 3, 4, 5], [(1, [2]), 3, 4, 5], [(1, 2), 3, [[4]], 5]):
        want = jax.grad(lambda p, trees=trees: sum(jnp.sin(with_marks(p, t)).sum() for t in trees))(PARAMS)
        (part,) = mine([trees])
        assert_same(local_value(step(PARAMS, part)), want, rtol=1e-4, atol=1e-5)


def scaling(operation: Any = jnp.abs) -> Any:
    scaled = jitbatch(lambda scale, x: operation(scale * x))
    return jb.jit(lambda scale, xs: scaled.batch(scale, xs).sum(), mesh=mesh(), samples="xs")


def go_through(step: Any, minibatches: Any) -> None:
    for xs in step.prefetch(minibatches, ahead=1):
        float(step(2.0, xs))


def networks() -> None:
    """Parameters that live in objects: `flax.nnx.jit` changes them in place, `equinox.filter_jit` returns others. They
    are bound to one device, as those are that were read from a checkpoint."""
    here = jax.local_devices()[0]
    xs = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    total = sum(map(sum, xs))
    (own,) = mine([xs])

    layer = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    apply = jitbatch(lambda layer, xs: sum(layer(jnp.ones(1) * x)[0] for x in xs))
    before = float(layer.kernel[0, 0])
    layer.kernel.set_value(jax.device_put(layer.kernel.get_value(), here))

    @jb.jit(mesh=mesh(), samples="xs", jit=nnx.jit)
    def train(layer: Any, xs: Any) -> Array:
        value, gradient = nnx.value_and_grad(lambda layer: apply.batch(layer, xs).sum())(layer)
        layer.kernel[...] -= 0.01 * gradient.kernel[...]
        return value

    for weight in (before, before - 0.01 * total):
        np.testing.assert_allclose(float(train(layer, own)), weight * total, rtol=1e-5)

    linear = eqx.nn.Linear(1, 1, use_bias=False, key=jax.random.key(0))
    applied = jitbatch(lambda linear, xs: sum(linear(jnp.ones(1) * x)[0] for x in xs))

    @jb.jit(mesh=mesh(), samples="xs", jit=eqx.filter_jit)
    def fit(linear: Any, xs: Any) -> Any:
        value, gradient = eqx.filter_value_and_grad(lambda linear: applied.batch(linear, xs).sum())(linear)
        return eqx.apply_updates(linear, jax.tree.map(lambda g: -0.01 * g, gradient)), value

    before = float(linear.weight[0, 0])
    linear = eqx.tree_at(lambda linear: linear.weight, linear, jax.device_put(linear.weight, here))
    for weight in (before, before - 0.01 * total):
        linear, value = fit(linear, own)
        np.testing.assert_allclose(float(value), weight * total, rtol=1e-5)


def late() -> None:
    """A process that lives but does not come is waited for as long as was asked for."""
    step = jb.jit(lambda scale, xs: scaled.batch(scale, xs).sum(), mesh=mesh(), samples="xs", timeout=2)
    if jax.process_index() == 0:
        with pytest.raises(ProcessError, match=r"process 1 of 2 has not come to call 1 of .* within 2 seconds"):
            step(2.0, [1.0])


def errors() -> None:
    """What goes wrong in one process raises in all."""
    me = jax.process_index()
    step = scaling()
    assert float(step(2.0, [1.0, 2.0])) == 12.0
    if me == 0:
        with pytest.raises(ProcessError, match=r"process 1 of 2 has failed: SampleError: sample 0: x.0. is 'a'"):
            step(2.0, [1.0, 2.0])
    else:
        with pytest.raises(TypeError, match=r"x.0. is 'a'"):
            step(2.0, ["a", 2.0])
    with pytest.raises(ProcessError, match="process 1 of 2 has failed"):
        step(2.0, [1.0])

    with pytest.raises(ProcessError, match="All processes must run the same code"):
        scaling(jnp.sin if me else jnp.cos)(2.0, [1.0])
    unlike = jb.jit(lambda scale, xs: jnp.sort(y := scaled.batch(scale, xs))[:me].sum() + y.sum(), mesh=mesh())
    with pytest.raises(ProcessError, match="process 1 has compiled another program than process 0"):
        unlike(2.0, [1.0])  # without the comparison, one process waits for a collective operation of the other
    step = jb.jit(fails_if_flagged, mesh=mesh(), static_argnames="flag")
    assert float(step(2.0, [1.0], flag=False)) == 4.0
    with pytest.raises((ProcessError, ZeroDivisionError), match="a mistake on one process"):
        step(2.0, [1.0], flag=True)
    with pytest.raises(ProcessError, match="a mistake on one process"):
        step(2.0, [1.0], flag=True)
    with pytest.raises(ProcessError if me else ArgumentError, match="the argument 'scale' has one row for each of"):
        jb.jit(lambda scale, xs: scaled.batch(scale, xs).sum(), mesh=mesh())(np.ones(2), [1.0] * (2 + me))
    for scale in (jnp.float32(me), np.float32(me), float(me), np.arange(3.0) + me):
        with pytest.raises(ProcessError, match="process 1 was called with another value of 'scale' than process 0, in"):
            scaling()(scale, [1.0])
    step = scaling()
    assert float(step(2.0, [1.0])) == 4.0
    with pytest.raises(ProcessError, match=r"another value of 'scale' than process 0, in call 2 of .*lambda"):
        step(2.0 + me, [1.0])
    with pytest.raises(ProcessError, match=r"an earlier call has failed: .* another value of 'scale'"):
        step(2.0, [1.0])

    step = scaling()
    with pytest.raises(ProcessError, match="there are no more minibatches on process 1, unlike on process 0"):
        go_through(step, [[1.0]] * (4 - me))

    def ends() -> Iterator[Any]:
        yield from [[1.0]] * 3
        if me == 1:
            raise OSError("the disk is gone")

    step = scaling()
    with pytest.raises((ProcessError, OSError), match="the disk is gone"):
        go_through(step, ends())


def fails_if_flagged(scale: Any, xs: Any, flag: bool) -> Array:
    if flag and jax.process_index() == 1:
        raise ZeroDivisionError("a mistake on one process")
    return scaled.batch(scale, xs).sum()


def second_kind() -> None:
    """A new kind of call, in which a process has no samples; planned ahead, while the loader of one process is slow."""
    tripled = jitbatch(lambda scale, x: 3 * scale * x)
    me = jax.process_index()

    def chosen(scale: Any, state: Any, xs: Any, flag: bool) -> Any:
        return (tripled if flag else scaled).batch(scale, xs).sum(), state

    for names in ("xs", ()):
        for state in ((), []):
            step = jb.jit(chosen, mesh=mesh(), samples=names, static_argnames="flag")
            assert float(step(2.0, state, [3.0] if me else [], flag=False)[0]) == 6.0
            assert float(step(2.0, state, [] if me else [1.0, 2.0], flag=True)[0]) == 18.0

    def loaded() -> Iterator[Any]:
        for number in range(6):
            time.sleep(0.5 * me * (number == 4))
            yield [float(number)]

    step = jb.jit(chosen, mesh=mesh(), samples="xs", static_argnames="flag", timeout=60)
    for number, xs in enumerate(step.prefetch(loaded(), ahead=2)):
        assert float(step(2.0, None, xs, flag=number > 1)[0]) == 4.0 * number * (3 if number > 1 else 1)


def many_epochs() -> None:
    """Epochs do not read each other's messages, and leave none behind."""
    step = jb.jit(lambda scale, xs: total.batch(scale, xs).sum(), mesh=mesh(), samples="xs")
    for _ in range(9):
        for xs in step.prefetch([[(1.0, 2.0)]] * 2):
            assert float(step(2.0, xs)) == 12.0
    deep: Any = 1.0
    for _ in range(6):
        deep = (deep, deep)
    for xs in step.prefetch([[(1.0, 2.0)], [deep]]):  # the second needs more room
        value = float(step(2.0, xs))
    assert value == 2 * 2 * 64
    left = compat._coordination().key_value_dir_get_bytes(step._processes.channel.name)
    assert len(left) < 9, left  # those of the newest rounds


@jitbatch
def total(scale: Any, tree: Any) -> Any:
    return sum(total(scale, t) for t in tree) if isinstance(tree, tuple) else scale * tree


def another_step() -> None:
    """Processes that wait at different steps say so, long before the time is over. A step of one process alone has its
    own messages."""
    me = jax.process_index()
    if me == 0:
        jb.jit(lambda xs: xs, mesh=mesh())
    train = scaling()
    evaluate = jb.jit(lambda scale, xs: scaled.batch(scale, xs).mean(), mesh=mesh(), samples="xs")
    assert float(train(2.0, [1.0])) == float(2 * evaluate(2.0, [1.0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "WAITS_LONG", 1.0)
        with pytest.raises(ProcessError, match=rf"process {1 - me} is at call 2 of .*, but process {me} is at call 2"):
            (evaluate if me else train)(2.0, [1.0])


def failed_in_a_loop() -> None:
    """An exception between the steps of one process, while the other runs a step that it cannot leave."""
    watch.GRACE = 2.0
    step = scaling()
    for number, xs in enumerate(step.prefetch([[1.0]] * 100, ahead=2)):
        if number == 5 and jax.process_index() == 1:
            raise KeyError("my own mistake in the loop")
        float(step(2.0, xs))


def killed() -> None:
    """One process is killed by another hand; this one must end by itself, and say who."""
    step = jb.jit(body, mesh=mesh(), samples="trees", rows="labels")
    params: Any = PARAMS
    trees, labels = next(mine([minibatch(8)]))
    for number in range(100_000):
        params, value = step(params, trees, labels)
        float(value)
        if number == 3:
            print("running", flush=True)
        time.sleep(0.05)


def main() -> None:
    limit = threading.Timer(280, lambda: os._exit(3))
    limit.daemon = True
    limit.start()
    for name in CHECKS:
        begin = time.perf_counter()
        globals()[name]()
        print(name, f"{time.perf_counter() - begin:.1f}", file=sys.stderr, flush=True)
        print(f"checked {name}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyError:
        raise
    except BaseException:  # end at once: JAX would wait for the other process
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
