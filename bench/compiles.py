"""How often a train step is compiled over three epochs in different shuffles, with plans made `like` the last one.

Run with `python bench/compiles.py`, on random trees, or with `--sst FILE` on trees in the bracketed form of the
Stanford Sentiment Treebank.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np
from run import Params, logits, make_params, random_tree

compiled: list[float] = []


def note_compilation(event: str, duration_secs: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(duration_secs)


def read_tree(line: str, vocabulary: dict[str, int]) -> Any:
    """`(3 (2 It) (4 works))` as nested pairs of word numbers; labels are left out."""
    stack: list[list[Any]] = [[]]
    for token in line.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            _, *children = stack.pop()
            stack[-1].append(children[0] if len(children) == 1 else tuple(children))
        else:
            stack[-1].append(token if not stack[-1] else vocabulary.setdefault(token, len(vocabulary)))
    return stack[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sst", help="a file of bracketed trees")
    parser.add_argument("--trees", type=int, default=2048, help="how many random trees, without --sst")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    vocabulary: dict[str, int] = {}
    if arguments.sst:
        with open(arguments.sst, encoding="utf-8") as lines:
            trees = [read_tree(line, vocabulary) for line in lines]
    else:
        trees = [random_tree(rng, int(rng.integers(2, 40))) for _ in range(arguments.trees)]
    params = make_params(arguments.hidden, max(len(vocabulary), 1000))

    @jax.jit
    def step(params: Params, plan: Any) -> Params:
        grads = jax.grad(lambda p: (logits.batch(p, plan) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    jax.monitoring.register_event_duration_secs_listener(note_compilation)
    plan = None
    in_all = 0
    for epoch in range(arguments.epochs):
        compiled.clear()
        planning = 0.0
        begin = time.perf_counter()
        order = rng.permutation(len(trees))
        for first in range(0, len(trees) - arguments.batch + 1, arguments.batch):
            start = time.perf_counter()
            plan = logits.plan(params, [trees[i] for i in order[first : first + arguments.batch]], like=plan)
            planning += time.perf_counter() - start
            params = jax.block_until_ready(step(params, plan))
        total = time.perf_counter() - begin
        slow = [seconds for seconds in compiled if seconds > 0.5]
        in_all += len(slow)
        print(
            f"epoch {epoch + 1}: {total:6.1f} s, of which planning {planning:5.1f} s; "
            f"the step was compiled {len(slow)} times in {sum(slow):.1f} s",
            flush=True,
        )
    print(f"{len(trees)} trees, {in_all} compilations of the step in all")


if __name__ == "__main__":
    main()
