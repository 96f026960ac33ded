"""The field's models on data made on the fly: steps of each policy beside the lower bound, and samples a second.

    python bench/field.py [--only NAME ...] [--batch 16 64 256] [--hidden 128] [--rounds 5] [--steps-only]

Steps are counted for the dispatch executor at the granularity of subgraphs, for the policies `depth`, `agenda` and
`layers`, and for `frontier`: the rule that takes the type with the largest part of its lowest rank ready, which is the
condition behind the learned order of ED-Batch (Chen et al., 2023). The bound is the number of ranks: no order of any
kind needs fewer. Samples a second are of training steps and of inference by `jitbatch.jit`, planning of samples that
were seen before counted, compilation not. Sizes are those of ED-Batch: embedding = hidden = 128 (MV-RNN 64).
"""

import argparse
import functools
import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from timing import interleaved

import jitbatch
from jitbatch import data, models
from jitbatch.data.ast_functions import FunctionVocabularies, number_functions
from jitbatch.schedule.policies import POLICIES, Policy, frontier, register

WORDS = 1000
ED_BATCH = "frontier"


class Made(NamedTuple):
    """A model, and samples for its method `loss`."""

    model: nnx.Module
    samples: Sequence[Any]


def sentences(rng: np.random.Generator, count: int, typed: bool = False) -> list[Any]:
    """Random binary trees over 4 to 25 words, with a class for each node."""

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return int(rng.integers(WORDS))
        left = int(rng.integers(1, leaves))
        children = tree(left), tree(leaves - left)
        return (jitbatch.Static(bool(rng.integers(2))), *children) if typed else children

    sizes = rng.integers(4, 26, size=count).tolist()
    return [data.Sentence(tree(n), rng.integers(5, size=2 * n - 1).astype(np.int32)) for n in sizes]


def on_trees(encoder: Any, typed: bool = False, most: int = 1024) -> Callable[[np.random.Generator, int, int], Made]:
    def make(rng: np.random.Generator, count: int, hidden: int) -> Made:
        size = min(hidden, most)
        model = models.Sentiment(WORDS, size, size, encoder=encoder, rngs=nnx.Rngs(0))
        return Made(model, sentences(rng, count, typed))

    return make


def tagger(rng: np.random.Generator, count: int, hidden: int) -> Made:
    def spelled() -> Any:
        return data.Spelled(int(rng.integers(WORDS)), rng.integers(30, size=rng.integers(2, 10)).astype(np.int32))

    lengths = rng.integers(4, 26, size=count).tolist()
    samples = [data.Tagged([spelled() for _ in range(n)], rng.integers(9, size=n).astype(np.int32)) for n in lengths]
    return Made(models.CharacterTagger(WORDS, 30, 9, hidden, hidden, rngs=nnx.Rngs(0)), samples)


def seq2seq(rng: np.random.Generator, count: int, hidden: int) -> Made:
    (samples,) = data.make_reversals(0, [count], words=WORDS, lengths=(4, 25))
    return Made(models.Seq2Seq(WORDS, WORDS, hidden, hidden, rngs=nnx.Rngs(0)), samples)


def lattice(kind: Any) -> Callable[[np.random.Generator, int, int], Made]:
    def make(rng: np.random.Generator, count: int, hidden: int) -> Made:
        (samples,) = data.make_lattices(0, [count], lengths=(3, 10))
        return Made(kind(30, 40, 3, hidden, hidden, rngs=nnx.Rngs(0)), samples)

    return make


def nested(rng: np.random.Generator, count: int, hidden: int) -> Made:
    (samples,) = data.make_documents(0, [count])
    return Made(models.NestedRNN(20, 4, hidden, hidden, rngs=nnx.Rngs(0)), samples)


def molecules(rng: np.random.Generator, count: int, hidden: int) -> Made:
    elements, _, found = data.read_g2()
    chosen = rng.integers(len(found), size=count)
    return Made(models.MoleculeEnergy(len(elements), hidden, rngs=nnx.Rngs(0)), [found[one] for one in chosen])


@functools.cache
def library() -> tuple[FunctionVocabularies, list[data.Function]]:
    """The functions of the standard library, of at most 200 nodes, whose names begin with one of 50 frequent words."""
    found = data.read_functions()
    names = data.Vocabulary(name for name, _ in Counter(one.name for one in found).most_common(50))
    names.freeze()
    vocabularies = FunctionVocabularies(data.Vocabulary(), data.Vocabulary(), data.Vocabulary(), names)
    return vocabularies, number_functions(found, vocabularies)


def syntax_trees(rng: np.random.Generator, count: int, hidden: int) -> Made:
    vocabularies, samples = library()
    kinds, fields, tokens, names = map(len, vocabularies)
    model = models.FunctionNamer(kinds, fields, tokens, names, hidden, hidden, rngs=nnx.Rngs(0))
    return Made(model, [samples[one] for one in rng.integers(len(samples), size=count)])


def sets(rng: np.random.Generator, count: int, hidden: int) -> Made:
    """Sets of 4 to 25 numbers, with attention of 8 heads over 8 points."""
    (samples,) = data.make_maxima(0, [count])
    return Made(models.SetTransformer(1, hidden, 8, 8, rngs=nnx.Rngs(0)), samples)


ZOO: dict[str, Callable[[np.random.Generator, int, int], Made]] = {
    "tree-lstm": on_trees(models.NaryTreeLSTM),
    "tree-gru": on_trees(models.BinaryTreeGRU),
    "mv-rnn": on_trees(models.MVRNN, most=64),
    "two-type tree-lstm": on_trees(models.TwoTypeTreeLSTM, typed=True),
    "bilstm tagger with characters": tagger,
    "seq2seq": seq2seq,
    "lattice-lstm": lattice(models.LatticeLSTM),
    "lattice-gru": lattice(models.LatticeGRU),
    "nested rnn": nested,
    "molecules": molecules,
    "syntax trees": syntax_trees,
    "set attention": sets,
}


def steps_of(made: Made) -> dict[str, int]:
    """The steps of each policy, and the lower bound."""
    function: Any = type(made.model).loss.__wrapped__  # type: ignore[attr-defined]
    found = {}
    for policy in ("depth", "agenda", ED_BATCH, "layers"):
        batched: Any = jitbatch.jitbatch(function, policy=policy, executor="dispatch")
        summary = batched.plan(made.model, made.samples, like=None).summary
        found[policy] = summary.steps
        found["bound"] = summary.bound
        found["nodes"] = summary.distinct
    return found


def speeds_of(made: Made, rounds: int) -> dict[str, float]:
    """Samples a second of training and of inference."""
    graph, state = nnx.split(made.model)

    @jitbatch.jit
    def train(state: Any, samples: Any) -> Any:
        def loss(state: Any) -> Any:
            model: Any = nnx.merge(graph, state)
            return model.loss.batch(samples).mean()

        return jax.tree.map(lambda p, g: p - 1e-3 * g, state, jax.grad(loss)(state))

    @jitbatch.jit
    def infer(state: Any, samples: Any) -> Any:
        model: Any = nnx.merge(graph, state)
        return model.loss.batch(samples)

    runs = {"training": lambda: train(state, made.samples), "inference": lambda: infer(state, made.samples)}
    return {name: len(made.samples) / timing.median for name, timing in interleaved(runs, rounds).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ZOO, default=list(ZOO), metavar="NAME", help=", ".join(ZOO))
    parser.add_argument("--batch", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-only", action="store_true", help="count steps, and run nothing")
    options = parser.parse_args()
    if ED_BATCH not in POLICIES:
        register(Policy(ED_BATCH, frontier))
    names = ("nodes", "bound", "layers", ED_BATCH, "agenda", "depth")
    rates = () if options.steps_only else ("training", "inference")
    print(" | ".join(["model", "minibatch", *names, *(f"{rate}, samples/s" for rate in rates)]))
    for name in options.only:
        if name == "molecules" and importlib.util.find_spec("ase") is None:
            print("molecules | left out: the package ase is not installed")
            continue
        for count in options.batch:
            made = ZOO[name](np.random.default_rng(0), count, options.hidden)
            steps = steps_of(made)
            speeds = {} if options.steps_only else speeds_of(made, options.rounds)
            figures = [f"{steps[one]:,}" for one in names] + [f"{speeds[rate]:,.0f}" for rate in rates]
            print(" | ".join([name, str(count), *figures]), flush=True)


if __name__ == "__main__":
    main()
