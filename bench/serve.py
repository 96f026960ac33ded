"""Serving: capacity, and latency against offered load, of a server and of what one would write without it.

    python bench/serve.py [--workloads trees sequences parser] [--shapes 16] [--hidden 128] [--rounds 9]

Requests are trees for a Tree-LSTM, or sequences for an LSTM, of `--shapes` shapes with random words. First the CPU time
of the process is measured for batches of 1, 2, 3, ... 64 of them, all that a request costs included: the medians of
`--rounds` rounds in turns. Then requests arrive at random (a Poisson process) on a virtual clock, which advances by
these times. So the figures are those of one core that does nothing else, and no thread takes part. Contestants:

- `serve`: the server of `f.serve(params)`, which takes whoever waits when it is free;
- `one by one`: each request by a `jax.jit` of its shape, compiled before;
- `5 ms`, `20 ms`: batches of the same programs, begun when 64 wait, or the oldest has waited so long.

The capacity is requests a second where requests wait all the time. Offered loads are given as parts of the capacity of
`serve`. Latencies are in milliseconds from arrival to answer: the median and the 99th percentile; a dash stands for a
load above the capacity. The last line is a server that has never seen the shapes of its requests: each is recorded
first.

The parser of `values.py` decides on its way, so it is served in flight. Beside it are whole batches of it: who arrives
while one is parsed waits for its last sentence. Here each sync runs, and the clock advances by its CPU time. Sentences
are new, so most ways are recorded first; or drawn from 128 sentences whose ways are known.
"""

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
from timing import compilations
from trees import random_tree
from values import parameters, parse, workloads

from jitbatch import Server, jitbatch
from jitbatch.serve.arguments import Given

WORKLOADS = ("trees", "sequences", "parser")

MOST = 64
"""The largest number of samples of a batch."""

MEASURED = (1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64)
"""The numbers of requests whose time is measured; others are interpolated, from one program's to the same program's."""

REQUESTS = 20_000
"""The number of requests that arrive on the virtual clock."""


# What is asked for


@jitbatch
def step(params: Any, h: Any, c: Any, token: Any) -> Any:
    i, f, o, g = jnp.split(params["embed"][token] @ params["x"] + h @ params["h"], 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@jitbatch
def last(params: Any, tokens: Any) -> Any:
    h = c = jnp.zeros(params["h"].shape[0])
    for token in tokens:
        h, c = step(params, h, c, token)
    return h @ params["out"]


def lstm_params(hidden: int) -> Any:
    shapes = {"embed": (1000, 300), "x": (300, 4 * hidden), "h": (hidden, 4 * hidden), "out": (hidden, 5)}
    return {name: 0.1 * jax.random.normal(jax.random.key(i), s) for i, (name, s) in enumerate(shapes.items())}


def shape_of(workload: str, rng: np.random.Generator) -> Any:
    return random_tree(rng, int(rng.integers(5, 36))) if workload == "trees" else (0,) * int(rng.integers(5, 61))


def filled(shape: Any, rng: np.random.Generator) -> Any:
    """A request of this shape with random words."""
    leaves, tree = jax.tree.flatten(shape)
    return tree.unflatten(rng.integers(1000, size=len(leaves)).tolist())


# Contestants


class OneByOne:
    """Each request by a program that is compiled for its shape; the words are one array."""

    def __init__(self, function: Any, params: Any):
        self._function, self._params = function.__wrapped__, params
        self._programs: dict[Any, Any] = {}

    def results_of(self, requests: Sequence[Any]) -> list[np.ndarray]:
        return list(map(self._result_of, requests))

    def _result_of(self, request: Any) -> np.ndarray:
        leaves, tree = jax.tree.flatten(request)
        program = self._programs.get(tree)
        if program is None:

            def run(params: Any, words: Any) -> Any:
                return self._function(params, tree.unflatten(list(words)))

            program = self._programs[tree] = jax.jit(run)
        return np.asarray(program(self._params, np.array(leaves, np.int32)))


class Served:
    """The server itself, without its thread."""

    def __init__(self, server: Server):
        self.worker = server._worker
        self.worker._start = lambda: None  # type: ignore[method-assign]

    def results_of(self, requests: Sequence[Any]) -> list[Any]:
        futures = [self.worker.submit(Given((request,))) for request in requests]
        while self.worker.turn(may_wait=False):
            pass
        return [future.result() for future in futures]


def seconds_of(run: Callable[[Sequence[Any]], Any], requests: Sequence[Any]) -> float:
    start = time.process_time()
    run(requests)
    return time.process_time() - start


def times_of(served: Served, alone: OneByOne, fresh: Callable[[int], list[Any]], rounds: int) -> tuple[Any, float]:
    """The seconds of 0, 1, ... 64 requests in one batch, and of one by itself."""
    seconds: dict[int, list[float]] = {count: [] for count in MEASURED}
    apart = []
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for count in MEASURED:
            seconds[count].append(seconds_of(served.results_of, fresh(count)))
            apart.append(seconds_of(alone.results_of, fresh(8)) / 8)
    gc.enable()
    medians = [float(np.median(seconds[count])) for count in MEASURED]
    return np.interp(range(MOST + 1), (0, *MEASURED), (0, *medians)), float(np.median(apart))


# The clock


def latencies(arrivals: np.ndarray, times: np.ndarray, delay: float = 0.0) -> np.ndarray:
    """The seconds that requests take from arrival to answer.

    Args:
        arrivals: when each request arrives, ascending.
        times: the seconds of a batch of 0, 1, ... requests, up to the largest batch.
        delay: a batch begins when it is full, or its first request has waited so long, and the device is free.
    """
    free, first, seconds = 0.0, 0, np.empty(len(arrivals))
    most = len(times) - 1
    while first < len(arrivals):
        full = arrivals[first + most - 1] if first + most <= len(arrivals) else np.inf
        begin = max(free, min(arrivals[first] + delay, full))
        count = min(int(np.searchsorted(arrivals, begin, side="right")) - first, most)
        free = begin + times[count]
        seconds[first : first + count] = free - arrivals[first : first + count]
        first += count
    return seconds


def row_of(times: np.ndarray, alone: float, load: float) -> str:
    capacity = MOST / times[-1]
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / (load * capacity), REQUESTS))
    single = np.array([0.0, alone])
    cells = []
    for each, delay in ((times, 0.0), (single, 0.0), (times, 0.005), (times, 0.02)):
        if load * capacity < (len(each) - 1) / each[-1]:
            p50, p99 = np.quantile(latencies(arrivals, each, delay), [0.5, 0.99]) * 1e3
            cells.append(f"{p50:8.1f} {p99:8.1f}")
        else:
            cells.append(f"{'-':>8} {'-':>8}")
    return f"{load * capacity:8.0f}/s ({load:4.0%})  " + "   ".join(cells)


def measure(workload: str, options: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    shapes = [shape_of(workload, rng) for _ in range(options.shapes)]
    function: Any = models.logits if workload == "trees" else last
    params = models.binary_params(options.hidden) if workload == "trees" else lstm_params(options.hidden)

    def fresh(count: int) -> list[Any]:
        return [filled(shapes[rng.integers(len(shapes))], rng) for _ in range(count)]

    server = function.serve(params, max_batch_size=MOST, max_waiting=4 * MOST)
    start = time.perf_counter()
    server.warm_up(fresh(512))
    print(f"{workload}: warm_up {time.perf_counter() - start:.1f} s, {server.stats().programs} programs")
    alone, served = OneByOne(function, params), Served(server)
    each = [filled(shape, rng) for shape in shapes]
    want = alone.results_of(each)  # compiles each
    np.testing.assert_allclose(served.results_of(each), want, rtol=1e-3, atol=1e-4)
    with compilations() as compiled:
        times, apart = times_of(served, alone, fresh, options.rounds)
    capacity = MOST / times[-1]
    print(f"capacity, requests a second: serve and batches by time {capacity:.0f}, one by one {1 / apart:.0f}")
    print("ms of a batch: " + ", ".join(f"{count}: {1e3 * times[count]:.1f}" for count in MEASURED))
    print(f"{'offered':18}" + "   ".join(f"{n + ': p50, p99':>17}" for n in ("serve", "one by one", "5 ms", "20 ms")))
    for load in options.loads:
        print(row_of(times, apart, load))
    unseen = [filled(shape_of(workload, rng), rng) for _ in range(4 * MOST)]
    print(f"capacity with new shapes: serve {len(unseen) / seconds_of(served.results_of, unseen):.0f}")
    print(f"compilations after warm_up: {len(compiled)}\n", flush=True)


# In flight


def fly(served: Served, requests: Sequence[Any], arrivals: np.ndarray, may_join: bool) -> np.ndarray:
    """The seconds that requests take, in flight, or else in whole batches."""
    worker, seconds = served.worker, np.empty(len(requests))
    running: dict[Any, int] = {}
    now, arrived, asked = 0.0, 0, 0
    while asked < len(requests) or running:
        arrived = int(np.searchsorted(arrivals, now, side="right"))
        if arrived == asked and not running:
            now = arrivals[asked]
            continue
        start = time.process_time()
        if may_join or not running:
            for number in range(asked, arrived):
                running[worker.submit(Given((requests[number],)))] = number
            asked = arrived
        worker.turn(may_wait=False)
        now += time.process_time() - start
        for future in [future for future in running if future.done()]:
            number = running.pop(future)
            future.result()
            seconds[number] = now - arrivals[number]
    return seconds


def measure_parser(options: argparse.Namespace) -> None:
    params, count = parameters(0), options.sentences
    sentences = workloads(count)["parser"][3]
    server = parse.serve(params, max_batch_size=MOST, max_waiting=count)
    server.warm_up(sentences(0))
    served = Served(server)
    pool = sentences(1)[:128]
    fly(served, pool, np.zeros(len(pool)), may_join=True)
    drawn = [pool[i] for i in np.random.default_rng(2).integers(len(pool), size=count)]
    with compilations() as compiled:
        for name, which in (("known sentences", lambda seed: drawn), ("new sentences", sentences)):
            print(f"parser, {name}: in flight p50, p99; whole batches p50, p99")
            for place, rate in enumerate(options.rates):
                arrivals = np.cumsum(np.random.default_rng(3).exponential(1 / rate, count))
                seeds = [[10 + 6 * place + 2 * turn + j for j in (1, 0)] for turn in range(3)]
                runs = [[fly(served, which(seed), arrivals, bool(seed % 2)) for seed in pair] for pair in seeds]
                cells = np.median(np.quantile(runs, [0.5, 0.99], axis=2), axis=1) * 1e3
                told = "   ".join(f"{p50:8.1f} {p99:8.1f}" for p50, p99 in cells.T)
                print(f"{rate:8.0f}/s  {told}", flush=True)
    print(f"compilations after warm_up: {len(compiled)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--shapes", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
    options = parser.parse_args()
    for workload in options.workloads:
        measure_parser(options) if workload == "parser" else measure(workload, options)


if __name__ == "__main__":
    main()
