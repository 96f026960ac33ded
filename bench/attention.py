"""Attention over sentences of 4 to 25 words: what people write, in samples a second of training steps, in one run.

    python bench/attention.py [--batch 64] [--batches 4] [--rounds 15] [--hidden 128]

Each way pools a sentence with a learned query and is trained over the same minibatches, planning counted, compilation
not. The ways are `segment.attend` and `segment.softmax`, a stable softmax by hand with the maximum of a stack under
`stop_gradient` and sums, and sentences that are padded to 25 words with a mask, in one cell.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved

import jitbatch
from jitbatch import segment

WORDS, LONGEST = 1000, 25


def make_params(rng: np.random.Generator, hidden: int) -> dict[str, Any]:
    def weights(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / shape[-1] ** 0.5, jnp.float32)

    square = {name: weights(hidden, hidden) for name in ("key", "value")}
    return {"embed": weights(WORDS, hidden), "query": weights(hidden), "out": weights(hidden, 2), **square}


def make_sentence(rng: np.random.Generator) -> list[int]:
    return rng.integers(WORDS, size=int(rng.integers(4, LONGEST + 1))).tolist()


def padded(sentence: list[int]) -> tuple[np.ndarray, int]:
    return np.array([*sentence, *[0] * (LONGEST - len(sentence))], np.int32), len(sentence)


@jitbatch.jitbatch
def word(params: Any, token: Any) -> tuple[Any, Any]:
    """The key and the value of a word."""
    x = jnp.tanh(params["embed"][token])
    return x @ params["key"], x @ params["value"]


def score(query: Any, keys: Any) -> Any:
    return keys @ query / query.shape[0] ** 0.5


@jitbatch.jitbatch
def attend(params: Any, sentence: Any) -> Any:
    words = [word(params, token) for token in sentence]
    return segment.attend(params["query"], [key for key, _ in words], [value for _, value in words]) @ params["out"]


@jitbatch.jitbatch
def softmax(params: Any, sentence: Any) -> Any:
    words = [word(params, token) for token in sentence]
    weights = segment.softmax([score(params["query"], key) for key, _ in words])
    return sum(weight * value for weight, (_, value) in zip(weights, words, strict=True)) @ params["out"]


@jitbatch.jitbatch
def by_hand(params: Any, sentence: Any) -> Any:
    words = [word(params, token) for token in sentence]
    scores = [score(params["query"], key) for key, _ in words]
    largest = jax.lax.stop_gradient(jnp.stack(scores).max(axis=0))
    exponentials = [jnp.exp(score - largest) for score in scores]
    products = [one * value for one, (_, value) in zip(exponentials, words, strict=True)]
    return sum(products) / sum(exponentials) @ params["out"]


@jitbatch.jitbatch
def by_padding(params: Any, sentence: Any) -> Any:
    tokens, length = sentence
    is_word = jnp.arange(LONGEST) < length
    x = jnp.tanh(params["embed"][tokens])
    keys, values = x @ params["key"], x @ params["value"]
    scores = jnp.where(is_word, score(params["query"], keys), -jnp.inf)
    return jax.nn.softmax(scores) @ values @ params["out"]


def train(model: Any, params: Any, minibatches: Sequence[Any], labels: Any) -> Callable[[], Any]:
    """A function that trains a model on some minibatches."""

    @jitbatch.jit
    def step(params: Any, samples: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((model.batch(params, samples) - labels) ** 2).mean()

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    def run() -> Any:
        trained = params
        for samples in minibatches:
            trained = step(trained, samples, labels)
        return trained

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 64), ("batches", 4), ("rounds", 15), ("hidden", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    params = make_params(rng, options.hidden)
    minibatches = [[make_sentence(rng) for _ in range(options.batch)] for _ in range(options.batches)]
    filled = [[padded(sentence) for sentence in samples] for samples in minibatches]
    labels = jnp.asarray(rng.normal(size=(options.batch, 2)), jnp.float32)
    ways = {"segment.attend": attend, "segment.softmax": softmax, "by hand": by_hand, "padding": by_padding}
    given = {name: filled if name == "padding" else minibatches for name in ways}
    for name, model in ways.items():
        for samples, sentences in zip(given[name][0][:2], given["padding"][0][:2], strict=True):
            want = by_padding(params, sentences)
            np.testing.assert_allclose(model(params, samples), want, rtol=1e-4, atol=1e-4, err_msg=name)
    timings = interleaved(
        {name: train(model, params, given[name], labels) for name, model in ways.items()}, options.rounds
    )
    samples = options.batch * options.batches
    print(f"hidden {options.hidden}, minibatch {options.batch}\n\nway | types | steps | samples a second | to padding")
    for name, timing in timings.items():
        summary = ways[name].plan(params, given[name][0]).summary
        times = timings["padding"].median / timing.median
        print(f"{name} | {summary.types} | {summary.steps} | {samples / timing.median:,.0f} | {times:.2f}")


if __name__ == "__main__":
    main()
