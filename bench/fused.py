"""The fused executor against what else one could run: ratios of medians of interleaved runs.

    python bench/fused.py --data DIR [--only N ...] [--quick] [--json FILE]

DIR holds `sst/train.txt` (bracketed trees) and `sick/train/` (`a.toks`, `a.parents`, ...); without it, trees are
random. Figures:

1. how often a train step compiles over three epochs in different shuffles, and for how long;
2. speed against Tree-LSTMs batched by hand (levels in scans, and unrolled), plans and tables made before;
3. against a loop of jitted programs, one for each shape of tree, compiled before;
4. against the dispatch executor;
5. against nothing but the matrix products of a step, in as few calls as possible;
6. 1,024 trees in one minibatch against 16 minibatches of 64.

A ratio is the other's time by ours: above one, jitbatch is faster. Before anything is timed, its loss, and for training
its gradients, are compared with those of what it is timed against (but for bare products, which have no loss).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
from baselines import levels
from baselines.dense import dense
from baselines.loop import calls_of, jitted_loop
from models import Params
from timing import compilations, interleaved
from trees import (
    distinct_subtrees,
    minibatches,
    random_pairs,
    random_sentences,
    total_nodes,
)

from jitbatch import Plan, jitbatch, keep_memory
from jitbatch.data import Vocabulary, read_sick, read_sst

Row = dict[str, Any]
MODES = ("inference", "training")


@dataclass(frozen=True)
class Case:
    """A model, its data, and the same model batched by hand."""

    name: str
    model: Any
    make_params: Callable[..., Params]
    samples: list[Any]
    words: int
    hidden: tuple[int, ...]
    fit: Callable[[Sequence[Any], int], levels.Sizes]
    prepare: Callable[[Any, levels.Sizes], Any]
    by_hand: Callable[[Params, Any], jax.Array]

    def params(self, hidden: int) -> Params:
        return self.make_params(hidden, self.words)


@dataclass(frozen=True)
class Settings:
    """What is run; see the options of the command."""

    cases: dict[str, Case]
    rounds: int
    batches: tuple[int, ...]  # sizes of minibatches
    several: int  # minibatches of each size, padded to the same sizes
    loop_trees: int
    large: int
    epochs: int


def make_settings(arguments: argparse.Namespace) -> Settings:
    rng = np.random.default_rng(0)
    sst_words, sick_words = Vocabulary(), Vocabulary()
    if arguments.data:
        sentences = read_sst(arguments.data / "sst" / "train.txt", sst_words)
        pairs = read_sick(arguments.data / "sick" / "train", sick_words)
        sentences, pairs = ([one[i] for i in rng.permutation(len(one))] for one in (sentences, pairs))
    else:
        number = 256 if arguments.quick else 2048
        sentences, pairs = random_sentences(rng, number), random_pairs(rng, number)
    if arguments.quick:
        sentences, pairs = sentences[:64], pairs[:64]
    every_node = arguments.loss == "nodes"
    sst = Case(
        "SST",
        models.all_loss if every_node else models.root_loss,
        models.binary_params,
        sentences,
        max(len(sst_words), 1000),
        arguments.hidden or ((16,) if arguments.quick else (128, 256)),
        levels.fit_binary,
        levels.prepare_binary,
        lambda params, tables: levels.binary_loss(params, tables, every_node),
    )
    sick = Case(
        "SICK",
        models.pair_loss,
        models.pair_params,
        pairs,
        max(len(sick_words), 1000),
        arguments.hidden or ((16,) if arguments.quick else (128, 150, 256)),
        levels.fit_pairs,
        levels.prepare_pairs,
        levels.pair_loss,
    )
    return Settings(
        cases={case.name: case for case in (sst, sick) if case.name.lower() in arguments.cases},
        rounds=arguments.rounds or (2 if arguments.quick else 7),
        batches=arguments.batch or ((4, 8) if arguments.quick else (16, 64, 256)),
        several=2 if arguments.quick else 4,
        loop_trees=4 if arguments.quick else 64,
        large=32 if arguments.quick else 1024,
        epochs=3,
    )


# --- Parts of the figures


def plans_of(model: Any, params: Params, batches: Sequence[Any]) -> list[Plan]:
    """Plans of the same sizes, so that one program runs all of them."""
    plan = None
    for batch in batches:
        plan = model.plan(params, batch, like=plan)
    return [model.plan(params, batch, like=plan) for batch in batches]


def mean_loss(model: Any) -> Callable[[Params, Any], jax.Array]:
    return lambda params, plan: model.batch(params, plan).mean()


def over(function: Callable[[Params, Any], Any], params: Params, batches: Sequence[Any]) -> Callable[[], Any]:
    return lambda: [function(params, batch) for batch in batches]


def in_mode(loss: Callable[[Params, Any], jax.Array], mode: str) -> Callable[[Params, Any], Any]:
    return loss if mode == "inference" else jax.value_and_grad(loss)


def agree(expected: Any, *others: Any, tolerance: float = 1e-4) -> None:
    """Raise an error unless all leaves agree, relative to the largest element of each leaf."""
    for other in others:
        for (path, want), got in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(other), strict=True):
            difference = float(jnp.abs(want - got).max() / jnp.maximum(jnp.abs(want).max(), 1e-6))
            if not difference < tolerance:
                raise AssertionError(f"results differ by {difference:.1e} at {jax.tree_util.keystr(path)}")


def contest(row: Row, ours: str, contestants: dict[str, Callable[[], Any]], rounds: int) -> Row:
    """The row with milliseconds a minibatch of all contestants and, for the others, their time by ours."""
    timings = interleaved(contestants, rounds)
    ratios = {name: round(one.median / timings[ours].median, 3) for name, one in timings.items() if name != ours}
    seconds = {name: one._asdict() for name, one in timings.items()}
    milliseconds = {name: round(one.median * 1e3 / row["minibatches"], 3) for name, one in timings.items()}
    return row | {"ms": milliseconds, "ratio": ratios, "seconds": seconds}


def padding(plan: Plan) -> str:
    return repr(plan).rsplit(", ", 2)[1]


# --- Figures


def compiles(settings: Settings) -> Iterator[Row]:
    case = settings.cases["SST"]
    rng = np.random.default_rng(0)
    params = case.params(case.hidden[0])
    size = min(64, max(settings.batches))

    @jax.jit
    def step(params: Params, plan: Plan) -> Params:
        traced.append(plan)
        grads = jax.grad(mean_loss(case.model))(params, plan)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    plan = None
    traced: list[Plan] = []  # the step runs as Python when it is compiled, and only then
    for epoch in range(1, settings.epochs + 1):
        planning, seconds = 0.0, []
        begin = time.perf_counter()
        for batch in minibatches(case.samples, size, rng.permutation(len(case.samples))):
            start = time.perf_counter()
            plan = case.model.plan(params, batch, like=plan)
            planning += time.perf_counter() - start
            before = len(traced)
            with compilations() as durations:
                params = jax.block_until_ready(step(params, plan))
            if len(traced) > before:
                seconds.append(round(max(durations), 2))
        yield {
            "data": case.name,
            "trees": len(case.samples),
            "batch": size,
            "epoch": epoch,
            "compilations": len(seconds),
            "seconds of each": seconds,
            "seconds": round(time.perf_counter() - begin, 1),
            "of these planning": round(planning, 1),
        }


def by_hand(settings: Settings) -> Iterator[Row]:
    for case in settings.cases.values():
        check_by_hand(case)
        for hidden in case.hidden:
            params = case.params(hidden)
            for size in settings.batches:
                batches = list(minibatches(case.samples, size))[: settings.several]
                plans = plans_of(case.model, params, batches)
                row = {"data": case.name, "hidden": hidden, "batch": size, "minibatches": len(batches)}
                row["padding"] = {"fused": padding(plans[0])}
                tables = {}
                for name, per_scan in (("by hand, scans", 4), ("by hand, unrolled", 1)):
                    sizes = case.fit(batches, per_scan)
                    tables[name] = [case.prepare(batch, sizes) for batch in batches]
                    rows = total_nodes(batches[0]) - (total_leaves(batches[0]) if case.name == "SST" else 0)
                    row["padding"][name] = f"{levels.padding_of(sizes, rows):.0%} padding"
                for mode in MODES:
                    fused, hand = (jax.jit(in_mode(loss, mode)) for loss in (mean_loss(case.model), case.by_hand))
                    contestants = {"fused": over(fused, params, plans)}
                    contestants |= {name: over(hand, params, one) for name, one in tables.items()}
                    agree(*(run() for run in contestants.values()))
                    yield contest(row | {"mode": mode}, "fused", contestants, settings.rounds)


def check_by_hand(case: Case, samples: int = 4) -> None:
    """Losses and gradients of the program by hand are those of the plain loop over samples."""
    batch, params = case.samples[:samples], case.make_params(16, case.words, 20)

    def plain(params: Params) -> jax.Array:
        return jnp.stack([case.model(params, sample) for sample in batch]).mean()

    expected = jax.value_and_grad(plain)(params)
    for per_scan in (1, 4):
        tables = case.prepare(batch, case.fit([batch], per_scan))
        agree(expected, jax.jit(jax.value_and_grad(case.by_hand))(params, tables))


def total_leaves(samples: Sequence[Any]) -> int:
    return sum((len(sample.labels) + 1) // 2 for sample in samples)


def jitted(settings: Settings) -> Iterator[Row]:
    """With a vocabulary of the trees' own: the loop makes a gradient of all embeddings for every tree."""
    case = settings.cases["SST"]
    number_of: dict[int, int] = {}
    samples = [
        sample._replace(tree=jax.tree.map(lambda token: number_of.setdefault(token, len(number_of)), sample.tree))
        for sample in case.samples[: settings.loop_trees]
    ]
    params = case.make_params(case.hidden[0], len(number_of))
    calls = calls_of(samples)
    structures = len({structure for structure, _, _ in calls})
    few = samples[:16]
    plans = {1: plans_of(case.model, params, [[sample] for sample in few])}
    plans[len(samples)] = [case.model.plan(params, samples)]
    parts = {1: [[call] for call in calls[: len(few)]], len(samples): [calls]}
    for mode in MODES:
        fused = jax.jit(in_mode(lambda params, plan: case.model.batch(params, plan).sum(), mode))
        loop = jitted_loop(in_mode(case.model.__wrapped__, mode))
        begin = time.perf_counter()
        jax.block_until_ready(loop(params, calls))
        row = {"data": case.name, "hidden": case.hidden[0], "mode": mode, "structures": structures}
        row["seconds to compile the loop"] = round(time.perf_counter() - begin, 1)
        for size in plans:
            contestants = {"fused": over(fused, params, plans[size]), "loop": over(loop, params, parts[size])}
            agree(*(run() for run in contestants.values()))
            sizes = {"batch": size, "minibatches": len(plans[size])}
            yield contest(row | sizes, "fused", contestants, settings.rounds)


def dispatch(settings: Settings) -> Iterator[Row]:
    for case in settings.cases.values():
        hidden = case.hidden[0]
        params = case.params(hidden)
        by_dispatch: Any = jitbatch(case.model.__wrapped__, executor="dispatch")
        for size in (1, *settings.batches):
            batches = list(minibatches(case.samples, size))[: settings.several]
            plans = plans_of(case.model, params, batches)
            dispatched = [by_dispatch.plan(params, batch) for batch in batches]
            for mode in MODES:
                contestants = {
                    "fused": over(jax.jit(in_mode(mean_loss(case.model), mode)), params, plans),
                    "dispatch": over(in_mode(mean_loss(by_dispatch), mode), params, dispatched),
                }
                agree(*(run() for run in contestants.values()))
                row = {"data": case.name, "hidden": hidden, "batch": size, "minibatches": len(batches), "mode": mode}
                yield contest(row, "fused", contestants, settings.rounds)


def products(settings: Settings) -> Iterator[Row]:
    size = max(settings.batches)
    for case in settings.cases.values():
        for hidden in case.hidden:
            params = case.params(hidden)
            batch = next(minibatches(case.samples, size))
            plan = case.model.plan(params, batch)
            shapes = (sst_products if case.name == "SST" else sick_products)(params, batch)
            flops = sum(2 * rows * n * m for rows, n, m in shapes)
            for mode in MODES:
                row = {"data": case.name, "hidden": hidden, "batch": size, "minibatches": 1, "mode": mode}
                row["GFLOP"] = round(flops * (1 if mode == "inference" else 3) / 1e9, 3)
                fused = jax.jit(in_mode(mean_loss(case.model), mode))
                contestants = {
                    "fused": over(fused, params, [plan]),
                    "products": dense(shapes, mode == "training"),
                }
                yield contest(row, "fused", contestants, settings.rounds)


def sst_products(params: Params, batch: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Of the loss at the roots, with equal subtrees computed once."""
    subtrees = distinct_subtrees(batch)
    branches = sum(token < 0 for token, *_ in subtrees)
    embedding, hidden = params["embed"].shape[1], params["out"].shape[0]
    return [
        (len(subtrees) - branches, embedding, 3 * hidden),
        (branches, 2 * hidden, 5 * hidden),
        (len(batch), hidden, 5),
    ]


def sick_products(params: Params, batch: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Words are projected once, forget gates of a state once, and equal subtrees are computed once."""
    subtrees = distinct_subtrees(batch)
    words = {token for token, *_ in subtrees}
    inner = [children for _, *children in subtrees if children]
    read = {child for children in inner for child in children}
    embedding, hidden = params["embed"].shape[1], params["b_f"].shape[0]
    return [
        (len(words), embedding, 4 * hidden),
        (len(inner), hidden, 3 * hidden),
        (len(read), hidden, hidden),
        (len(batch), 2 * hidden, models.SIMILARITY_HIDDEN),
        (len(batch), models.SIMILARITY_HIDDEN, models.CLASSES),
    ]


def large(settings: Settings) -> Iterator[Row]:
    """Milliseconds of all samples, in one minibatch and in several."""
    case = settings.cases["SST"]
    hidden = case.hidden[0]
    params = case.params(hidden)
    samples = case.samples[: settings.large]
    batches = list(minibatches(samples, len(samples) // 16))
    plans = {len(samples): [case.model.plan(params, samples)], len(batches[0]): plans_of(case.model, params, batches)}
    nodes = total_nodes(samples)
    for mode in MODES:
        run = jax.jit(in_mode(mean_loss(case.model), mode))
        contestants = {f"minibatches of {size}": over(run, params, some) for size, some in plans.items()}
        at_once, in_parts = (run() for run in contestants.values())
        agree(at_once[0], jax.tree.map(lambda *parts: sum(parts) / len(parts), *in_parts))
        row: Row = {"data": case.name, "hidden": hidden, "mode": mode, "minibatches": 1, "nodes": nodes}
        row = contest(row, next(iter(contestants)), contestants, settings.rounds)
        yield row | {"us a node": {name: round(ms * 1e3 / nodes, 3) for name, ms in row["ms"].items()}}


FIGURES = {1: compiles, 2: by_hand, 3: jitted, 4: dispatch, 5: products, 6: large}
ONLY_SST = (1, 3, 6)


def show(row: Row) -> str:
    def value(x: Any) -> str:
        return "; ".join(f"{name} {value(one)}" for name, one in x.items()) if isinstance(x, dict) else str(x)

    return ", ".join(f"{name}: {value(x)}" for name, x in row.items() if name != "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data; without it, trees are random")
    parser.add_argument("--only", type=int, nargs="+", choices=FIGURES, default=list(FIGURES), help="figures")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    parser.add_argument("--cases", nargs="+", choices=["sst", "sick"], default=["sst", "sick"])
    parser.add_argument("--loss", choices=["root", "nodes"], default="root", help="where SST trees have a loss")
    parser.add_argument("--hidden", type=int, nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", help="sizes of minibatches")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    keep_memory()
    settings = make_settings(arguments)
    machine = {"jax": jax.__version__, "backend": jax.default_backend(), "SST loss": arguments.loss}
    print(show(machine))
    rows: list[Row] = []
    for number in arguments.only:
        if number in ONLY_SST and "SST" not in settings.cases:
            continue
        print(f"\n{number}. {FIGURES[number].__name__}", flush=True)
        for row in FIGURES[number](settings):
            rows.append({"figure": number} | row)
            print(f"  {show(row)}", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(machine | {"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
