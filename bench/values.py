"""Samples that look at values: a greedy parser and early exit, beside a loop of jitted cells and masked code by hand.

    python bench/values.py                  # 64 samples, 5 turns
    python bench/values.py --samples 256 --turns 9
    python bench/values.py --stress 100000  # so many samples with errors and cancellations: nothing is left behind

Contestants take turns in one process. Times are CPU seconds of the process (all threads), medians of the turns, so that
other work on the machine counts little. "known" is a rollout of samples whose ways were walked before, "new" one of
samples with other numbers, whose ways may be new. Results are compared with the loop before anything is timed.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import compilations

import jitbatch
from jitbatch import jitbatch as decorated

HIDDEN, WORDS, LONGEST, LAYERS = 64, 200, 30, 12

# The parser: shift a word, or join the two topmost phrases


@decorated
def word(params: Any, number: Any) -> Any:
    return params["embed"][number]


@decorated
def decide(params: Any, second: Any, first: Any, following: Any) -> Any:
    hidden = jnp.tanh(jnp.concatenate([second, first, following]) @ params["decide"])
    return (hidden @ params["out"]) > 0


@decorated
def join(params: Any, second: Any, first: Any) -> Any:
    return jnp.tanh(jnp.concatenate([second, first]) @ params["join"])


@decorated
async def parse(params: Any, words: Any) -> Any:
    return await parse_with(params, words, word, decide, join, jitbatch.value)


async def parse_with(params: Any, words: Any, word: Any, decide: Any, join: Any, value: Any) -> Any:
    buffer, stack = [word(params, number) for number in words][::-1], []
    while buffer or len(stack) > 1:
        if len(stack) < 2:
            shifts = True
        elif not buffer:
            shifts = False
        else:
            shifts = await value(decide(params, stack[-2], stack[-1], buffer[-1]))
        stack.append(buffer.pop() if shifts else join(params, *[stack.pop() for _ in range(2)][::-1]))
    return stack[0]


def parse_by_hand(params: Any, words: Any, lengths: Any) -> Any:
    """All sentences in step, with arrays for stacks."""
    count, longest = words.shape
    vectors, every = params["embed"][words], jnp.arange(count)

    def step(_: Any, state: Any) -> Any:
        stack, height, read = state
        second, first = (stack[every, jnp.maximum(height - below, 0)] for below in (2, 1))
        following = vectors[every, jnp.minimum(read, lengths - 1)]
        chosen = jax.vmap(partial(decide.__wrapped__, params))(second, first, following)
        shifts = (height < 2) | ((read < lengths) & chosen)
        is_done = (read == lengths) & (height == 1)
        new = jnp.where(shifts[:, None], following, jax.vmap(partial(join.__wrapped__, params))(second, first))
        at = jnp.where(shifts, height, height - 2)
        stack = stack.at[every, at].set(jnp.where(is_done[:, None], stack[every, at], new))
        height = jnp.where(is_done, height, jnp.where(shifts, height + 1, height - 1))
        return stack, height, read + (shifts & ~is_done)

    zeros = jnp.zeros(count, jnp.int32)
    first = (jnp.zeros((count, longest + 1, HIDDEN)), zeros, zeros)
    return lax.fori_loop(0, 2 * longest - 1, step, first)[0][:, 0]


# Early exit: layers with shared weights


@decorated
def layer(params: Any, x: Any) -> Any:
    return x + jnp.tanh(jnp.tanh(x @ params["inner"]) @ params["outer"])


@decorated
def is_sure(params: Any, x: Any) -> Any:
    return (x @ params["sure"]) > params["least"]


@decorated
async def early(params: Any, x: Any) -> Any:
    return await early_with(params, x, layer, is_sure, jitbatch.value)


async def early_with(params: Any, x: Any, layer: Any, is_sure: Any, value: Any) -> Any:
    for _ in range(LAYERS):
        x = layer(params, x)
        if await value(is_sure(params, x)):
            break
    return x


def early_by_hand(params: Any, xs: Any) -> Any:
    def step(_: Any, state: Any) -> Any:
        xs, done = state
        xs = jnp.where(done[:, None], xs, jax.vmap(partial(layer.__wrapped__, params))(xs))
        return xs, done | jax.vmap(partial(is_sure.__wrapped__, params))(xs)

    return lax.fori_loop(0, LAYERS, step, (xs, jnp.zeros(len(xs), bool)))[0]


# Contestants


def loop_of_cells(fun: Callable[..., Any], cells: Sequence[Any]) -> Callable[[Any, Any], Any]:
    """One sample after the other, each cell a call of a compiled function."""
    compiled = [jax.jit(cell.__wrapped__) for cell in cells]

    async def value(array: Any) -> Any:
        return array.item()

    def run(params: Any, samples: Any) -> Any:
        return jnp.stack([jitbatch.run(fun(params, sample, *compiled, value)) for sample in samples])

    return run


def parameters(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    return {
        "embed": normal(WORDS, HIDDEN) * WORDS**0.5, "decide": normal(3 * HIDDEN, HIDDEN), "out": normal(HIDDEN),
        "join": normal(2 * HIDDEN, HIDDEN), "inner": normal(HIDDEN, 4 * HIDDEN), "outer": normal(4 * HIDDEN, HIDDEN),
        "sure": normal(HIDDEN), "least": jnp.float32(1.5),
    }  # fmt: skip


def workloads(count: int) -> dict[str, Any]:
    """For each workload the function, the loop, the code by hand, and two sets of samples."""

    def sentences(seed: int) -> list[tuple[int, ...]]:
        random = np.random.default_rng(seed)
        return [tuple(random.integers(0, WORDS, random.integers(5, LONGEST + 1)).tolist()) for _ in range(count)]

    def vectors(seed: int) -> list[Any]:
        return list(np.random.default_rng(seed).normal(size=(count, HIDDEN)).astype(np.float32))

    def parse_masked(params: Any, samples: Any) -> Any:
        words = np.zeros((len(samples), LONGEST), np.int32)
        for row, sample in zip(words, samples, strict=True):
            row[: len(sample)] = sample
        return parse_compiled(params, words, np.array(list(map(len, samples)), np.int32))

    parse_compiled, early_compiled = jax.jit(parse_by_hand), jax.jit(early_by_hand)
    return {
        "parser": (parse, loop_of_cells(parse_with, (word, decide, join)), parse_masked, sentences),
        "early exit": (
            early, loop_of_cells(early_with, (layer, is_sure)), lambda p, xs: early_compiled(p, np.stack(xs)), vectors,
        ),
    }  # fmt: skip


def timed(run: Callable[[], Any]) -> float:
    gc.collect()  # what others have left behind
    begun = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - begun


def measure(name: str, workload: Any, turns: int) -> None:
    fun, loop, by_hand, samples_of = workload
    params, known = parameters(0), samples_of(0)
    wanted = loop(params, known)
    for found in (fun.batch(params, known), by_hand(params, known)):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    for seed in (1, 2, 3):  # warm-up
        fun.batch(params, samples_of(seed))
    times, rollouts = [], []

    def roll_out(samples: Any) -> Any:
        rollouts.append(fun.rollout(params, samples))
        return rollouts[-1].outputs

    with compilations() as compiled:
        for turn in range(turns):
            new = samples_of(100 + turn)
            runs = partial(loop, params, known), partial(roll_out, known), partial(roll_out, new)
            times.append([timed(run) for run in (*runs, partial(by_hand, params, known))])
    in_loop, in_known, in_new, in_hand = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name}, {len(known)} samples: loop of jitted cells {in_loop:.1f} ms, by hand {in_hand:.1f} ms")
    for label, found, rolled in (("known", in_known, rollouts[::2]), ("new", in_new, rollouts[1::2])):
        t = rolled[-1].times
        medians = [statistics.median(getattr(one.times, part) / one.times.syncs for one in rolled) for part in TIMES]
        parts = ", ".join(f"{part} {1e6 * seconds:.0f}" for part, seconds in zip(TIMES, medians, strict=True))
        print(
            f"  {label}: {found:.1f} ms, {in_loop / found:.1f} times as fast as the loop, {found / in_hand:.1f} times "
            f"the time by hand; {t.syncs} syncs, {t.recorded} of {t.segments} segments recorded; us a sync on the "
            f"wall clock: {parts}"
        )
    print(f"  compiled after warm-up: {len(compiled)}")


TIMES = ("python", "assemble", "call", "read")


def stress(count: int) -> None:
    """Samples that return, raise and are cancelled, in one flight."""
    suspended = 0

    @decorated
    async def countdown(one: Any, x: Any) -> Any:
        nonlocal suspended
        suspended += 1
        try:
            while await jitbatch.value(x > 0):
                x = x - one
                if await jitbatch.value(x == 6):
                    raise ValueError("six")
            return x
        finally:
            suspended -= 1

    random = np.random.default_rng(0)
    flight = countdown.flight(1, [], room=256)
    done = failed = cancelled = 0
    waiting: list[Any] = []
    for number in range(count):
        waiting.append(flight.admit(random.integers(0, 10).item()))
        if number % 13 == 0:
            flight.cancel(waiting[random.integers(0, len(waiting))])
        while len(flight) == flight.room or (number == count - 1 and len(flight)):
            for ticket in flight.advance():
                done, failed = done + (ticket.error is None), failed + (ticket.error is not None)
        if len(waiting) > 1000:
            cancelled += sum(ticket.done for ticket in waiting)
            waiting = [ticket for ticket in waiting if not ticket.done]
    rows = int((flight._held.rows >= 0).sum())
    print(
        f"{count} samples: {done} returned, {failed} raised, {count - done - failed} cancelled; {suspended} suspended, "
        f"{len(flight)} in flight, {rows} rows left, {flight.times}"
    )
    if suspended or len(flight) or rows:
        raise SystemExit("something is left behind")
    flight.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--stress", type=int, default=0)
    options = parser.parse_args()
    if options.stress:
        stress(options.stress)
        return
    for name, workload in workloads(options.samples).items():
        measure(name, workload, options.turns)


if __name__ == "__main__":
    main()
