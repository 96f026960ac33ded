"""Train a Tree-LSTM on ListOps, written for one expression and run on a minibatch at a time.

    python bench/train.py [--epochs N] [--train-size N] [--batch-size N] [--hidden N] [--depth N] [--seed N]

ListOps expressions such as `[MAX 2 [MED 1 9 4] 7]` are nested operators over digits; the model reads an expression and
predicts its value, one digit. No two expressions need have the same shape, so `jax.vmap` does not apply to them.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from jitbatch import Plan, jitbatch

# --- The data: an expression is a digit, or a tuple of an operator's token and two to four expressions

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(np.median(values)),
    "SUM_MOD": lambda values: sum(values) % 10,
}
SYMBOLS = [*"0123456789", *OPERATORS]  # a token is a position in this list, so a digit is its own token
OPERATOR_TOKENS = range(10, len(SYMBOLS))

Expression: TypeAlias = Any  # int | tuple[int, *Expressions]
Data: TypeAlias = tuple[list[Expression], np.ndarray]  # expressions and their values


def random_expression(rng: np.random.Generator, depth: int) -> Expression:
    """An operator over two to four arguments: digits, or two times in five a nested operator while depth lasts."""
    arguments = [
        random_expression(rng, depth - 1) if depth > 1 and rng.random() < 0.4 else int(rng.integers(10))
        for _ in range(rng.integers(2, 5))
    ]
    return int(rng.choice(OPERATOR_TOKENS)), *arguments


def evaluate(expression: Expression) -> int:
    if isinstance(expression, int):
        return expression
    operator, *arguments = expression
    return OPERATORS[SYMBOLS[operator]]([evaluate(argument) for argument in arguments])


def to_string(expression: Expression) -> str:
    if isinstance(expression, int):
        return SYMBOLS[expression]
    operator, *arguments = expression
    return f"[{' '.join([SYMBOLS[operator], *map(to_string, arguments)])}]"


def make_splits(rng: np.random.Generator, sizes: list[int], max_depth: int) -> list[Data]:
    """Data sets of distinct expressions, none of them in two sets."""
    distinct: dict[Expression, int] = {}
    while len(distinct) < sum(sizes):
        expression = random_expression(rng, int(rng.integers(1, max_depth + 1)))
        distinct[expression] = evaluate(expression)
    data = list(distinct), np.array(list(distinct.values()))
    # Short expressions are found early: without shuffling, the later sets would be harder.
    orders = np.split(rng.permutation(len(distinct)), np.cumsum(sizes)[:-1])
    return [take(data, order) for order in orders]


def take(data: Data, positions: np.ndarray) -> Data:
    expressions, values = data
    return [expressions[i] for i in positions], values[positions]


def minibatches(data: Data, size: int, order: np.ndarray) -> Iterator[Data]:
    for start in range(0, len(order), size):
        yield take(data, order[start : start + size])


# --- The model, of one expression


class TreeLSTM(nnx.Module):
    """An operator is a state that reads its arguments from left to right, as an LSTM reads words."""

    def __init__(self, hidden: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(len(SYMBOLS), hidden, embedding_init=nnx.initializers.normal(1.0), rngs=rngs)
        self.gates = nnx.Linear(2 * hidden, 4 * hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, 10, rngs=rngs)

    @jitbatch
    def symbol(self, token: int) -> Array:
        return self.embed(jnp.asarray(token))

    @jitbatch
    def read(self, h: Array, c: Array, argument: Array) -> tuple[Array, Array]:
        i, f, o, u = jnp.split(self.gates(jnp.concatenate([h, argument])), 4)
        c = nnx.sigmoid(f + 1) * c + nnx.sigmoid(i) * jnp.tanh(u)
        return nnx.sigmoid(o) * jnp.tanh(c), c

    def encode(self, expression: Expression) -> Array:
        if not isinstance(expression, tuple):
            return self.symbol(expression)
        operator, *arguments = expression
        h = self.symbol(operator)
        c = jnp.zeros_like(h)
        for argument in arguments:
            h, c = self.read(h, c, self.encode(argument))
        return h

    @jitbatch
    def logits(self, expression: Expression) -> Array:
        return self.out(self.encode(expression))


cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def batch_loss(model: TreeLSTM, plan: Plan, values: np.ndarray) -> Array:
    """The mean loss of a minibatch: `.batch` is all it takes. The plan stands for the expressions it was made for."""
    return cross_entropy(model.logits.batch(plan), values).mean()


def sample_loss(model: TreeLSTM, expression: Expression, value: int) -> Array:
    """The loss of one expression, without batching: the same method, called as usual."""
    return cross_entropy(model.logits(expression), value)


# --- Training


@nnx.jit
def update(model: TreeLSTM, optimizer: nnx.Optimizer, plan: Plan, values: np.ndarray) -> Array:
    """One program for forward, backward and update, compiled once for all shapes of expressions."""
    loss, grads = jax.value_and_grad(batch_loss)(model, plan, values)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def predict(model: TreeLSTM, plan: Plan) -> Array:
    return model.logits.batch(plan).argmax(axis=-1)


def train(model: TreeLSTM, train_data: Data, dev_data: Data, args: argparse.Namespace) -> None:
    rng = np.random.default_rng(args.seed)
    count = len(train_data[1])
    steps = args.epochs * math.ceil(count / args.batch_size)
    optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(5e-3, steps)), wrt=nnx.Param)

    print("The first steps compile, and compile again while minibatches become larger.")
    print("epoch   loss   samples/s   dev accuracy   elapsed")
    begin = time.perf_counter()
    plan = None
    for epoch in range(1, args.epochs + 1):
        epoch_begin = time.perf_counter()
        total = 0.0
        for expressions, values in minibatches(train_data, args.batch_size, rng.permutation(count)):
            plan = model.logits.plan(expressions, like=plan)  # at least as large, so that the program fits
            total += float(update(model, optimizer, plan, values)) * len(values)
        speed = count / (time.perf_counter() - epoch_begin)
        right = accuracy(model, dev_data, args.batch_size)
        elapsed = time.perf_counter() - begin
        print(f"{epoch:5}  {total / count:5.3f}  {speed:10,.0f}  {right:13.1%}  {elapsed:6.0f} s", flush=True)


def accuracy(model: TreeLSTM, data: Data, batch_size: int) -> float:
    right, plan = 0, None
    for expressions, values in minibatches(data, batch_size, np.arange(len(data[1]))):
        plan = model.logits.plan(expressions, like=plan)
        right += int((np.asarray(predict(model, plan)) == values).sum())
    return right / len(data[1])


# --- What the accuracy is compared with


def symbol_counts(data: Data) -> np.ndarray:
    return np.array([np.bincount(jax.tree.leaves(e), minlength=len(SYMBOLS)) for e in data[0]], np.float32)


def bag_of_symbols_accuracy(train_data: Data, test_data: Data, seed: int, hidden: int = 128) -> float:
    """A two-layer perceptron that sees how often each symbol occurs, but not where."""
    rngs = nnx.Rngs(seed)
    model = nnx.Sequential(nnx.Linear(len(SYMBOLS), hidden, rngs=rngs), nnx.relu, nnx.Linear(hidden, 10, rngs=rngs))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    inputs, values = symbol_counts(train_data), train_data[1]

    @nnx.jit
    def fit(model: nnx.Sequential, optimizer: nnx.Optimizer, x: np.ndarray, y: np.ndarray) -> None:
        optimizer.update(model, jax.grad(lambda model: cross_entropy(model(x), y).mean())(model))

    rng = np.random.default_rng(seed)
    for _ in range(3000):
        chosen = rng.integers(len(values), size=256)
        fit(model, optimizer, inputs[chosen], values[chosen])
    return float(np.mean(np.argmax(model(symbol_counts(test_data)), axis=-1) == test_data[1]))


# --- What the speed is compared with


def seconds_per_sample(model: TreeLSTM, data: Data, in_loop: int = 16, repeats: int = 5) -> tuple[float, float]:
    """Median time for loss and gradients: of a few samples one by one, and of the minibatch, planning included."""
    expressions, values = data
    in_loop = min(in_loop, len(values))
    value_and_grad = jax.value_and_grad(sample_loss)

    def loop() -> Any:
        return [value_and_grad(model, expressions[i], values[i]) for i in range(in_loop)]

    batch_value_and_grad = jax.jit(jax.value_and_grad(batch_loss))

    def batch() -> Any:
        return batch_value_and_grad(model, model.logits.plan(expressions), values)

    loop_times, batch_times = [], []
    for _ in range(1 + repeats):
        for run, samples, times in ((loop, in_loop, loop_times), (batch, len(values), batch_times)):
            begin = time.perf_counter()
            jax.block_until_ready(run())
            times.append((time.perf_counter() - begin) / samples)
    return float(np.median(loop_times[1:])), float(np.median(batch_times[1:]))  # the first runs compile


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Tree-LSTM on ListOps with jitbatch.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--train-size", type=int, default=30_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2, help="how deep operators are nested at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    train_data, dev_data, test_data = make_splits(rng, [args.train_size, 1000, 2000], args.depth)
    print(f"ListOps: {args.train_size:,} expressions of depth 1 to {args.depth}, for example")
    for expression, value in zip(train_data[0][:3], train_data[1], strict=False):
        print(f"    {to_string(expression)} = {value}")

    model = TreeLSTM(args.hidden, nnx.Rngs(args.seed))
    train(model, train_data, dev_data, args)
    print(f"test accuracy, Tree-LSTM        {accuracy(model, test_data, args.batch_size):6.1%}")
    print(f"test accuracy, bag of symbols   {bag_of_symbols_accuracy(train_data, test_data, args.seed):6.1%}")
    majority = np.bincount(train_data[1]).argmax()
    print(f"test accuracy, majority class   {np.mean(test_data[1] == majority):6.1%}")

    minibatch = next(minibatches(train_data, args.batch_size, np.arange(args.train_size)))
    loop, batch = seconds_per_sample(model, minibatch)
    print(f"loss and gradients, one by one  {1 / loop:8,.0f} samples/s")
    print(f"loss and gradients, batched     {1 / batch:8,.0f} samples/s: {loop / batch:.0f} times as fast")


if __name__ == "__main__":
    main()
