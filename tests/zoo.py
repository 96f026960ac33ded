"""The workloads that the tests share: per-sample functions with differently shaped samples.

Each workload is an ordinary function of `(params, sample)`. Its plain loop over the samples is the reference
answer, so nothing in this file says what a batched result should be.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from jitbatch import Static, jitbatch

Params = dict[str, Any]
Tree = Any  # a leaf, or a tuple of trees

HIDDEN = 4
INPUT = 3
VOCAB = 7
CLASSES = 3


# --- What a workload is, and how results are compared


@dataclass(frozen=True, eq=False)
class Workload:
    """A per-sample function with its parameters and samples.

    Attributes:
        name: The function's name.
        fun: The undecorated per-sample function, to be decorated with any options.
        batched: The same function as decorated with the default options.
        make_params: Draws the shared argument from a key.
        make_samples: Draws a number of samples.
        float_inputs: Whether the float leaves of the samples are differentiated too.
        low_precision: Whether float16 or bfloat16 values take part, which widens every tolerance.
        size: How many samples the suite asks for.
    """

    name: str
    fun: Callable[[Any, Any], Any]
    batched: Any
    make_params: Callable[[Array], Any]
    make_samples: Callable[[np.random.Generator, int], list[Any]]
    float_inputs: bool = False
    low_precision: bool = False
    size: int = 4

    def draw(self, size: int | None = None, seed: int = 0) -> tuple[Any, list[Any]]:
        """Parameters and samples, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        return self.make_params(jax.random.key(seed)), self.make_samples(rng, size or self.size)

    def loop(self, params: Any, samples: Sequence[Any]) -> Any:
        """The reference: the plain function of one sample, one sample after the other, stacked."""
        return stack([self.fun(params, sample) for sample in samples])

    def __repr__(self) -> str:
        return f"Workload({self.name})"


WORKLOADS: list[Workload] = []


def workload(
    make_params: Callable[[Array], Any],
    make_samples: Callable[[np.random.Generator, int], list[Any]],
    **flags: Any,
) -> Callable[[Any], Any]:
    """Register a decorated function as a workload."""

    def register(batched: Any) -> Any:
        fun = batched.__wrapped__
        WORKLOADS.append(Workload(fun.__name__, fun, batched, make_params, make_samples, **flags))
        return batched

    return register


def named(name: str) -> Workload:
    """The workload of that name."""
    return next(entry for entry in WORKLOADS if entry.name == name)


def stack(outputs: Sequence[Any]) -> Any:
    """Per-sample outputs stacked on axis 0, leaf by leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *outputs)


def is_float(leaf: Any) -> bool:
    """Whether a leaf can be differentiated: a float array or a Python float."""
    if not isinstance(leaf, float | np.ndarray | np.generic | jax.Array):
        return False
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def split_floats(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The float leaves of a pytree, and a function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_float(leaf)]

    def rebuild(floats: Sequence[Any]) -> Any:
        changed = list(leaves)
        for place, value in zip(places, floats, strict=True):
            changed[place] = value
        return jax.tree.unflatten(treedef, changed)

    return [leaves[place] for place in places], rebuild


def projected(outputs: Any) -> Array:
    """A scalar loss: the float leaves of the outputs projected on fixed random directions."""
    rng = np.random.default_rng(1234)
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(outputs):
        direction = rng.normal(size=jnp.shape(leaf)).astype(np.float32)
        if is_float(leaf):
            total = total + jnp.sum(jnp.asarray(leaf, jnp.float32) * direction)
    return total


def gradients(
    run: Callable[[Any, list[Any]], Any],
    params: Any,
    samples: list[Any],
    float_inputs: bool = False,
    transform: Callable[[Any], Any] = lambda fun: fun,
) -> tuple[Any, Any]:
    """The values of `run(params, samples)`, and the gradients of a projection of them for the float leaves.

    `transform` is applied to the function that computes both; `jax.jit` makes one program of it.
    """
    weights, with_weights = split_floats(params)
    inputs, with_inputs = split_floats(samples)

    def loss(weights: list[Any], inputs: list[Any] | None = None) -> tuple[Array, Any]:
        values = run(with_weights(weights), samples if inputs is None else with_inputs(inputs))
        return projected(values), values

    if float_inputs:
        (_, values), grads = transform(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(weights, inputs)
    else:
        (_, values), grads = transform(jax.value_and_grad(loss, has_aux=True))(weights)
    return values, grads


def assert_same(got: Any, want: Any, *, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Equal structure, shapes and dtypes; floats to tolerance, everything else exactly."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        a, b = jnp.asarray(a), jnp.asarray(b)
        where = f"at {jax.tree_util.keystr(path) or 'the root'}"
        assert a.shape == b.shape, f"{where}: shape {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"{where}: dtype {a.dtype}, not {b.dtype}"
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if jnp.issubdtype(a.dtype, jnp.floating):
            a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=where)
        else:
            np.testing.assert_array_equal(a, b, err_msg=where)


@contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """Collects one entry for each XLA compilation."""
    compilations: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def assert_bits(got: Any, want: Any) -> None:
    """Equal bit for bit."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes(), f"{a} is not {b}, bit for bit"


# --- Drawing parameters and samples


def weights(**shapes: tuple[int, ...]) -> Callable[[Array], Params]:
    """Draws a dict of normal arrays of the given shapes."""

    def draw(key: Array) -> Params:
        keys = jax.random.split(key, len(shapes))
        return {name: 0.5 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    return draw


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def token(rng: np.random.Generator) -> int:
    return int(rng.integers(VOCAB))


def random_tree(rng: np.random.Generator, leaves: int, make_leaf: Callable[[], Any]) -> Tree:
    """A random binary tree of nested pairs."""
    if leaves == 1:
        return make_leaf()
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left, make_leaf), random_tree(rng, leaves - left, make_leaf)


def token_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Binary trees of token ids with 1 to 5 leaves; the first is a single leaf."""
    return [random_tree(rng, 1 + i % 5, lambda: token(rng)) for i in range(n)]


def vector_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Binary trees of input vectors with 1 to 5 leaves."""
    return [random_tree(rng, 1 + i % 5, lambda: normal(rng, INPUT)) for i in range(n)]


def sequences(rng: np.random.Generator, n: int) -> list[Array]:
    """Input rows, 1 to 5 of them."""
    return [normal(rng, 1 + (2 * i) % 5, INPUT) for i in range(n)]


def long_sequences(rng: np.random.Generator, n: int) -> list[Array]:
    """Input rows, 3 to 5 of them."""
    return [normal(rng, 3 + i % 3, INPUT) for i in range(n)]


def token_sequences(rng: np.random.Generator, n: int) -> list[Array]:
    return [jnp.asarray(rng.integers(VOCAB, size=1 + (2 * i) % 5), jnp.int32) for i in range(n)]


# --- Binary trees


class State(NamedTuple):
    """The two outputs of an LSTM cell."""

    h: Array
    c: Array


tree_params = weights(
    embed=(VOCAB, HIDDEN), compose=(2 * HIDDEN, 5 * HIDDEN), bias=(5 * HIDDEN,), out=(HIDDEN, CLASSES)
)


@jitbatch
def leaf(params: Params, word: Any) -> State:
    c = params["embed"][word]
    return State(jnp.tanh(c), c)


@jitbatch
def compose(params: Params, left: State, right: State) -> State:
    gates = jnp.concatenate([left.h, right.h]) @ params["compose"] + params["bias"]
    i, o, f_left, f_right, u = jnp.split(gates, 5)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    c = c + jax.nn.sigmoid(f_left) * left.c + jax.nn.sigmoid(f_right) * right.c
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


def encode(params: Params, tree: Tree) -> State:
    if isinstance(tree, tuple):
        return compose(params, *(encode(params, child) for child in tree))
    return leaf(params, tree)


@workload(tree_params, token_trees, size=5)
@jitbatch
def binary_tree(params: Params, tree: Tree) -> Array:
    """Recursion over the sample with a decorated leaf and a decorated composition."""
    return encode(params, tree).h @ params["out"]


@workload(tree_params, lambda rng, n: [token(rng) for _ in range(n)], size=3)
@jitbatch
def single_leaf(params: Params, tree: Tree) -> Array:
    """Every sample is a leaf."""
    return encode(params, tree).h @ params["out"]


def repeated_tree(rng: np.random.Generator, n: int) -> list[Tree]:
    tree = random_tree(rng, 4, lambda: token(rng))
    return [tree] * n


@workload(tree_params, repeated_tree)
@jitbatch
def one_sample_repeated(params: Params, tree: Tree) -> State:
    """All samples are one and the same."""
    return encode(params, tree)


def bare_gate(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def bare_leaf(params: Params, word: Any) -> State:
    c = params["embed"][word]
    return State(jnp.tanh(c), c)


def bare_compose(params: Params, left: State, right: State) -> State:
    gates = jnp.concatenate([left.h, right.h]) @ params["compose"] + params["bias"]
    i, o, f_left, f_right, u = jnp.split(gates, 5)
    c = bare_gate(i) * jnp.tanh(u) + bare_gate(f_left) * left.c + bare_gate(f_right) * right.c
    return State(bare_gate(o) * jnp.tanh(c), c)


def bare_encode(params: Params, tree: Tree) -> State:
    if isinstance(tree, tuple):
        left, right = tree
        return bare_compose(params, bare_encode(params, left), bare_encode(params, right))
    return bare_leaf(params, tree)


@workload(tree_params, token_trees, size=5)
@jitbatch
def bare_tree_lstm(params: Params, tree: Tree) -> Array:
    """The same Tree-LSTM in bare jnp with helper functions: no decorated call anywhere."""
    return bare_encode(params, tree).h @ params["out"]


@workload(weights(embed=(VOCAB, HIDDEN), w=(HIDDEN, HIDDEN)), token_trees)
@jitbatch
def recursion_through_itself(params: Params, tree: Tree) -> Array:
    """A decorated function that calls itself, with bare operations around the calls."""
    if not isinstance(tree, tuple):
        return params["embed"][tree]
    left, right = (recursion_through_itself(params, child) for child in tree)
    return jnp.tanh((left - 0.5 * right) @ params["w"])


@jitbatch
def unit(params: Params, h: Array) -> Array:
    return jnp.tanh(h @ params["w"] + params["b"])


@jitbatch
def layer(params: Params, h: Array) -> Array:
    return h + 0.5 * unit(params, unit(params, h))


@jitbatch
def stack_of_layers(params: Params, hs: list[Array]) -> Array:
    return layer(params, functools.reduce(operator.add, [layer(params, h) for h in hs]))


@workload(
    weights(w=(INPUT, INPUT), b=(INPUT,)),
    lambda rng, n: [[normal(rng, INPUT) for _ in range(1 + i % 3)] for i in range(n)],
    float_inputs=True,
)
@jitbatch
def nested_decorated(params: Params, hs: list[Array]) -> Array:
    """Decorated functions that call decorated functions, three deep."""
    return stack_of_layers(params, hs) - unit(params, hs[0])


def missing_child_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    def node(depth: int) -> Tree:
        if depth == 0 or rng.random() < 0.3:
            return None
        return {"x": normal(rng, INPUT), "left": node(depth - 1), "right": node(depth - 1)}

    return [{"x": normal(rng, INPUT), "left": node(i % 3), "right": node(2)} for i in range(n)]


@jitbatch
def binary_cell(params: Params, x: Array, left: Array, right: Array) -> Array:
    return jnp.tanh(x @ params["x"] + left @ params["left"] + right @ params["right"])


@workload(
    weights(x=(INPUT, HIDDEN), left=(HIDDEN, HIDDEN), right=(HIDDEN, HIDDEN), nil=(HIDDEN,)),
    missing_child_trees,
    float_inputs=True,
)
@jitbatch
def missing_children(params: Params, tree: Tree) -> Array:
    """A learned state from the parameters where other calls pass a computed one."""
    if tree is None:
        return params["nil"]
    left, right = missing_children(params, tree["left"]), missing_children(params, tree["right"])
    return binary_cell(params, tree["x"], left, right)


def labelled_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    def label(tree: Tree) -> Tree:
        gold = jnp.int32(rng.integers(CLASSES))
        return (gold, *map(label, tree)) if isinstance(tree, tuple) else (gold, jnp.int32(tree))

    return [label(tree) for tree in token_trees(rng, n)]


@jitbatch
def cross_entropy(params: Params, state: State, gold: Array) -> Array:
    return -jax.nn.log_softmax(state.h @ params["out"])[gold]


@workload(tree_params, labelled_trees)
@jitbatch
def per_node_losses(params: Params, tree: Tree) -> Array:
    """A loss at every node of a tree, summed."""
    losses: list[Array] = []

    def visit(node: Tree) -> State:
        gold, *children = node
        is_leaf = len(children) == 1
        state = leaf(params, *children) if is_leaf else compose(params, *map(visit, children))
        losses.append(cross_entropy(params, state, gold))
        return state

    visit(tree)
    return functools.reduce(operator.add, losses)


@jitbatch
def add_node(params: Params, left: Array, right: Array) -> Array:
    return jnp.tanh(left @ params["add"] + right)


@jitbatch
def max_node(params: Params, left: Array, right: Array) -> Array:
    return jnp.maximum(left @ params["max"], right)


@workload(
    weights(add=(INPUT, INPUT), max=(INPUT, INPUT)),
    lambda rng, n: [random_tree(rng, 3 + i % 3, lambda: normal(rng, INPUT)) for i in range(n)],
    float_inputs=True,
)
@jitbatch
def alternating_kinds(params: Params, tree: Tree) -> Array:
    """Two kinds of subgraph, alternating by depth."""

    def visit(node: Tree, depth: int) -> Array:
        if not isinstance(node, tuple):
            return node
        left, right = (visit(child, depth + 1) for child in node)
        return (max_node if depth % 2 else add_node)(params, left, right)

    return visit(tree, 0)


# --- Trees of any arity, graphs with shared nodes

child_sum_params = weights(
    w_iou=(INPUT, 3 * HIDDEN),
    u_iou=(HIDDEN, 3 * HIDDEN),
    w_f=(INPUT, HIDDEN),
    u_f=(HIDDEN, HIDDEN),
)


def bushy_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Pairs of an input vector and a list of children; three samples have all arities from 0 to 8."""
    arities = [(8, 0, 1), (7, 2, 3), (6, 4, 5), (0,), (1, 1), (3, 0, 2)]

    def node(children: Sequence[Tree] = ()) -> Tree:
        return normal(rng, INPUT), list(children)

    def sample(arity: int, *inner: int) -> Tree:
        children = [node([node() for _ in range(k)]) for k in inner[:arity]]
        return node(children + [node() for _ in range(arity - len(children))])

    return [sample(*arities[i % len(arities)]) for i in range(n)]


def child_sum_update(params: Params, x: Array, h_sum: Array, carried: Array) -> State:
    i, o, u = jnp.split(x @ params["w_iou"] + h_sum @ params["u_iou"], 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + carried
    return State(jax.nn.sigmoid(o) * jnp.tanh(c), c)


@jitbatch
def child_sum_cell(params: Params, x: Array, children: list[State]) -> State:
    if not children:
        return child_sum_update(params, x, jnp.zeros(HIDDEN), jnp.zeros(HIDDEN))
    h = jnp.stack([child.h for child in children])
    c = jnp.stack([child.c for child in children])
    forget = jax.nn.sigmoid(x @ params["w_f"] + h @ params["u_f"])
    return child_sum_update(params, x, h.sum(0), (forget * c).sum(0))


@workload(child_sum_params, bushy_trees, float_inputs=True)
@jitbatch
def child_sum_lists(params: Params, tree: Tree) -> Array:
    """A child-sum Tree-LSTM whose cell takes the list of its children."""

    def visit(node: Tree) -> State:
        x, children = node
        return child_sum_cell(params, x, [visit(child) for child in children])

    return visit(tree).h


@jitbatch
def forget_edge(params: Params, x: Array, child: State) -> Array:
    return jax.nn.sigmoid(x @ params["w_f"] + child.h @ params["u_f"]) * child.c


child_sum_node = jitbatch(child_sum_update)


@workload(child_sum_params, bushy_trees, float_inputs=True)
@jitbatch
def child_sum_edges(params: Params, tree: Tree) -> Array:
    """A child-sum Tree-LSTM with a cell an edge and bare sums of any number of terms."""

    def visit(node: Tree) -> State:
        x, children = node
        states = [visit(child) for child in children]
        zero = jnp.zeros(HIDDEN)
        h_sum = functools.reduce(operator.add, [state.h for state in states], zero)
        carried = functools.reduce(operator.add, [forget_edge(params, x, state) for state in states], zero)
        return child_sum_node(params, x, h_sum, carried)

    return visit(tree).h


def arity_trees(rng: np.random.Generator, n: int) -> list[Tree]:
    """Pairs of an input vector and a list of children, with arities 0 to 3."""
    shapes: list[Any] = [[[], [[]]], [[], [], [[], []]], [], [[]]]

    def node(shape: Any) -> Tree:
        return normal(rng, HIDDEN), [node(child) for child in shape]

    return [node(shapes[i % len(shapes)]) for i in range(n)]


pool_params = weights(w=(HIDDEN, HIDDEN), u=(HIDDEN, HIDDEN), b=(HIDDEN,))


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def child_sum_bare(params: Params, tree: Tree) -> Array:
    """A child-sum Tree-LSTM in bare jnp, with a forget gate for each child and a learned start."""

    def visit(node: Tree) -> State:
        x, children = node
        states = [visit(child) for child in children]
        gates = x @ params["w"]
        carried = sum(jax.nn.sigmoid(gates + state.h @ params["u"]) * state.c for state in states)
        c = jnp.sin(gates + sum([state.h for state in states], params["b"]) @ params["u"]) + carried
        return State(jnp.tanh(c), c)

    return visit(tree).h


@jitbatch
def gated_list(params: Params, x: Array, children: list[State]) -> State:
    carried = sum([jax.nn.sigmoid(x + child.h @ params["u"]) * child.c for child in children], jnp.zeros(HIDDEN))
    c = jnp.sin(x @ params["w"]) + carried
    return State(jnp.tanh(c), c)


@jitbatch
def gated_arguments(params: Params, x: Array, *children: State) -> State:
    c = jnp.sin(x @ params["w"])
    for child in children:
        c = c + jax.nn.sigmoid(x + child.h @ params["u"]) * child.c
    return State(jnp.tanh(c), c)


@jitbatch
def gated_lists(params: Params, x: Array, children: dict[str, list[Array]]) -> State:
    """Calls another decorated function that reduces the list."""
    states = [State(h, c) for h, c in zip(children["h"], children["c"], strict=True)]
    h, c = gated_list(params, x, states)
    return State(h + sum(children["h"], params["b"]), c)


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def children_in_arguments(params: Params, tree: Tree) -> Array:
    """Decorated cells that take their children as a list, as further arguments and as a dict of lists."""

    def visit(node: Tree, depth: int) -> State:
        x, children = node
        states = [visit(child, depth + 1) for child in children]
        if depth % 3 == 0:
            return gated_list(params, x, states)
        if depth % 3 == 1:
            return gated_arguments(params, x, *states)
        return gated_lists(params, x, {"h": [state.h for state in states], "c": [state.c for state in states]})

    return visit(tree, 0).h


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def pooled_children(params: Params, tree: Tree) -> Array:
    """Mean, max and min of any number of children, some of them equal."""
    x, children = tree
    states = [params["b"], *(pooled_children(params, child) for child in children)]
    mean = jnp.stack(states).mean(0)
    largest, smallest = jnp.stack([*states, *states[-1:]]).max(0), jnp.min(jnp.stack(states, axis=1), axis=1)
    return jnp.tanh(x + mean @ params["w"] + largest * smallest)


@workload(pool_params, arity_trees, float_inputs=True, size=3)
@jitbatch
def losses_through_recursion(params: Params, tree: Tree) -> tuple[Array, Array]:
    """A loss and a count of every node, summed up on the way back."""

    def visit(node: Tree) -> tuple[Array, Any, Any]:
        x, children = node
        below = [visit(child) for child in children]
        h = jnp.tanh(x @ params["w"] + sum(state for state, *_ in below))
        loss, count = (h * params["b"]).sum(), jnp.int32(1)
        for _, child_loss, child_count in below:
            loss = loss + child_loss
            count = count + child_count
        return h, loss, count

    return visit(tree)[1:]


@jitbatch
def message(params: Params, sender: Array, receiver: Array) -> Array:
    return jax.nn.sigmoid(sender @ params["w"] + receiver) * sender


@workload(
    pool_params,
    lambda rng, n: [{"x": normal(rng, 3 + i, HIDDEN), "skip": Static(i + 1)} for i in range(n)],
    float_inputs=True,
    size=3,
)
@jitbatch
def message_passing(params: Params, graph: Params) -> Array:
    """Every node reads all earlier nodes but some: most are read many times."""
    states: list[Array] = []
    for i, x in enumerate(graph["x"]):
        senders = [h for j, h in enumerate(states) if (i - j) % (graph["skip"].value + 1)]
        states.append(jnp.tanh(x + sum(message(params, h, x) for h in senders)))
    return jnp.stack(states).mean(0) + params["b"]


@workload(pool_params, lambda rng, n: [normal(rng, 1 + 2 * i, HIDDEN) for i in range(n)], float_inputs=True, size=3)
@jitbatch
def running_totals(params: Params, xs: Array) -> dict[str, Array]:
    """Totals that are read on the way, sums of these, and the same values added twice."""
    total, seen = jnp.zeros(HIDDEN), []
    for x in xs:
        total = total + x @ params["w"]
        seen.append(jnp.tanh(total))
    nested = sum(sum(jnp.sin(x * y) for y in seen) for x in xs)
    return {
        "total": total,
        "seen": sum(seen) + sum(seen[::-1]),
        "nested": nested,
        "shared": sum([params["b"]] * len(xs)),
    }


@workload(
    pool_params,
    lambda rng, n: [normal(rng, 1 + 2 * i, HIDDEN) for i in range(n)],
    float_inputs=True,
    low_precision=True,
    size=3,
)
@jitbatch
def sums_of_every_dtype(params: Params, xs: Array) -> dict[str, Any]:
    """Integers, bools, short floats and scalars, by themselves and mixed."""
    short = [(x @ params["w"]).astype(jnp.bfloat16) for x in xs]
    return {
        "int": sum((3 * x).astype(jnp.int32) for x in xs),
        "int8": jnp.stack([(30 * x).astype(jnp.int8) for x in xs]).sum(0),
        "bool": jnp.stack([x > 0 for x in xs]).sum(0),
        "or": functools.reduce(operator.add, [x > 1 for x in xs]),
        "largest": jnp.stack([(3 * x).astype(jnp.int32) for x in xs]).max(0),
        "bfloat16": sum(short),
        "mean": jnp.stack(short).mean(0),
        "mixed": sum([*short, xs[0]]),
        "scalars": sum(x @ params["b"] for x in xs),
        "numbers": sum([0.5] * len(xs)) * params["b"],
    }


tagger_params = weights(embed=(VOCAB, HIDDEN), x=(HIDDEN, 4 * HIDDEN), h=(HIDDEN, 4 * HIDDEN), out=(HIDDEN, CLASSES))


@jitbatch
def tagger_cell(params: Params, word: Any, state: State) -> tuple[State, Array]:
    i, o, f, u = jnp.split(params["embed"][word] @ params["x"] + state.h @ params["h"], 4)
    c = jax.nn.sigmoid(f) * state.c + jax.nn.sigmoid(i) * jnp.tanh(u)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return State(h, c), jax.nn.log_softmax(h @ params["out"])


@workload(tagger_params, token_sequences)
@jitbatch
def tagger(params: Params, words: Array) -> tuple[Array, Array]:
    """An LSTM whose input projection needs no state, and whose readout nothing waits for."""
    state, scores = State(jnp.zeros(HIDDEN), jnp.zeros(HIDDEN)), []
    for word in words:
        state, score = tagger_cell(params, word, state)
        scores.append(score)
    return state.h, jnp.stack(scores).mean(0)


def random_dags(rng: np.random.Generator, n: int) -> list[Params]:
    """Nodes in topological order with the indices of up to two predecessors, and the same one twice."""

    def edges(size: int) -> tuple[tuple[int, ...], ...]:
        drawn: list[tuple[int, ...]] = [()]
        for node in range(1, size):
            drawn.append(tuple(int(i) for i in rng.integers(node, size=rng.integers(1, 3))))
        return (*drawn, (size - 1, size - 1))

    sizes = [2 + i % 4 for i in range(n)]
    return [{"x": normal(rng, size + 1, INPUT), "edges": Static(edges(size))} for size in sizes]


dag_params = weights(source=(INPUT, HIDDEN), one=(HIDDEN, HIDDEN), two=(HIDDEN, HIDDEN))


@jitbatch
def dag_source(params: Params, x: Array) -> Array:
    return jnp.tanh(x @ params["source"])


@jitbatch
def dag_one(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["source"] + h @ params["one"])


@jitbatch
def dag_two(params: Params, x: Array, left: Array, right: Array) -> Array:
    return jnp.tanh(x @ params["source"] + left @ params["one"] + right @ params["two"])


@workload(dag_params, random_dags, float_inputs=True, size=5)
@jitbatch
def dag(params: Params, graph: Params) -> Array:
    """Directed acyclic graphs whose nodes are read by several others."""
    cells = (dag_source, dag_one, dag_two)
    values: list[Array] = []
    for x, before in zip(graph["x"], graph["edges"].value, strict=True):
        values.append(cells[len(before)](params, x, *(values[i] for i in before)))
    return values[-1]


# --- Sequences: rows of an input array

rnn_params = weights(x=(INPUT, HIDDEN), h=(HIDDEN, HIDDEN), b=(HIDDEN,), h0=(HIDDEN,))


@jitbatch
def rnn_cell(params: Params, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])


def run_rnn(params: Params, h: Array, xs: Any) -> list[Array]:
    states: list[Array] = []
    for x in xs:
        h = rnn_cell(params, x, h)
        states.append(h)
    return states


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def rnn(params: Params, xs: Array) -> Array:
    """A loop over rows from a learned initial state."""
    return run_rnn(params, params["h0"], xs)[-1]


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def rnn_from_zeros(params: Params, xs: Array) -> Array:
    """Rows by index, from a state of zeros."""
    h = jnp.zeros(HIDDEN)
    for i in range(xs.shape[0]):
        h = rnn_cell(params, xs[i], h)
    return h


@workload(
    lambda key: {"there": rnn_params(key), "back": rnn_params(jax.random.fold_in(key, 1))},
    sequences,
    float_inputs=True,
)
@jitbatch
def bidirectional_rnn(params: Params, xs: Array) -> dict[str, Array]:
    """Forwards and backwards over the rows, joined at each position."""
    there = run_rnn(params["there"], params["there"]["h0"], xs)
    back = run_rnn(params["back"], params["back"]["h0"], xs[::-1])[::-1]
    joined = [jnp.concatenate(pair) for pair in zip(there, back, strict=True)]
    return {"mean": sum(joined[1:], joined[0]) / len(joined), "ends": jnp.stack([there[-1], back[0]])}


@jitbatch
def pair_cell(params: Params, x: Array, y: Array) -> Array:
    return jnp.tanh((x * y) @ params["x"])


@workload(rnn_params, long_sequences, float_inputs=True)
@jitbatch
def row_access(params: Params, xs: Array) -> dict[str, Array]:
    """Every way to name rows of an input with Python integers and slices."""
    rest = xs[1:]
    pairs = [pair_cell(params, x, y) for x, y in zip(xs, rest, strict=False)]
    h = run_rnn(params, pairs[0], rest)[-1]
    h = run_rnn(params, h, xs[::-1])[-1]
    h = run_rnn(params, h, [xs[0], xs[-1], xs[1], xs[len(xs) - 2]])[-1]
    return {
        "h": h + pairs[-1],
        "last": xs[-1],
        "head": xs[:2],
        "inner": pair_cell(params, xs[1:][0], xs[::2][1]),
        "entry": xs[0, 1] * xs[-1][0],
        "bare": 2.0 * xs[-2] + xs[1:].sum(0),
    }


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def scan_over_rows(params: Params, xs: Array) -> tuple[Array, Array]:
    """A scan over all rows of a sample, outside any subgraph."""

    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = jnp.tanh(x @ params["x"] + h @ params["h"])
        return h, h.max()

    h, peaks = lax.scan(step, params["h0"], xs)
    return h, peaks.sum()


@workload(weights(key=(INPUT, HIDDEN), query=(HIDDEN,), x=(INPUT, HIDDEN)), sequences, float_inputs=True)
@jitbatch
def attention(params: Params, xs: Array) -> Array:
    """As many subgraph results as there are rows, stacked and attended to."""
    values = jnp.stack([pair_cell(params, x, xs[0]) for x in xs])
    scores = jax.nn.softmax(xs @ params["key"] @ params["query"])
    return scores @ values


# --- What a cell may contain


@jitbatch
def three_outputs(params: Params, x: Array) -> dict[str, Any]:
    h = x @ params["x"]
    return {"vector": jnp.tanh(h), "parts": (h.sum(), jnp.outer(x, h)), "none": None}


@jitbatch
def read_parts(params: Params, total: Array, matrix: Array) -> tuple[Array, Array]:
    return total * params["b"], matrix.sum(0)


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def multi_output_cells(params: Params, xs: Array) -> dict[str, Any]:
    """Cells with nested outputs of several shapes, some of which nobody reads."""
    results = [three_outputs(params, x) for x in xs]
    first, second = read_parts(params, *results[-1]["parts"])
    third, _ = read_parts(params, results[0]["parts"][0], results[-1]["parts"][1])
    return {"h": results[0]["vector"] + first * third, "second": second, "none": results[0]["none"]}


@jitbatch
def scan_cell(params: Params, x: Array, h: Array) -> Array:
    def step(h: Array, scale: Array) -> tuple[Array, Array]:
        h = jnp.tanh(scale * (x @ params["x"]) + h @ params["h"])
        return h, h

    last, all_of_them = lax.scan(step, h, jnp.arange(1.0, 4.0))
    return last + all_of_them.mean(0)


@workload(rnn_params, sequences, float_inputs=True, size=3)
@jitbatch
def scan_in_cell(params: Params, xs: Array) -> Array:
    h = params["h0"]
    for x in xs:
        h = scan_cell(params, x, h)
    return h


@jitbatch
def cond_cell(params: Params, x: Array, h: Array) -> Array:
    return lax.cond(x[0] > 0, lambda: jnp.tanh(x @ params["x"] + h), lambda: jnp.sin(h @ params["h"]))


@jitbatch
def switch_cell(params: Params, which: Any, h: Array) -> Array:
    return lax.switch(which, [lambda h: h, lambda h: h @ params["h"], lambda h: h * params["b"]], h)


@workload(
    rnn_params,
    lambda rng, n: [(xs, jnp.int32(i % 3)) for i, xs in enumerate(sequences(rng, n))],
    float_inputs=True,
    size=3,
)
@jitbatch
def cond_in_cell(params: Params, sample: tuple[Array, Array]) -> Array:
    xs, which = sample
    h = params["h0"]
    for x in xs:
        h = cond_cell(params, x, h)
    return switch_cell(params, which, h)


@jitbatch
def collatz(params: Params, start: Array) -> tuple[Array, Array]:
    """How many steps to 1: a while_loop whose trip count differs from row to row."""

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        n, count = carry
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    _, count = lax.while_loop(lambda carry: carry[0] > 1, step, (start, jnp.int32(0)))
    return count, count * params["b"]


@jitbatch
def collatz_join(params: Params, left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    count, scaled = collatz(params, left[0] + right[0] + 1)
    return count, jnp.sin(scaled) + left[1] @ params["h"] + right[1]


@workload(
    rnn_params,
    lambda rng, n: [random_tree(rng, 1 + i % 3, lambda: jnp.int32(rng.integers(1, 20))) for i in range(n)],
    size=3,
)
@jitbatch
def while_in_cell(params: Params, tree: Tree) -> tuple[Array, Array]:
    """A while_loop inside a cell, and integers from cell to cell."""
    if isinstance(tree, tuple):
        left, right = (while_in_cell(params, child) for child in tree)
        return collatz_join(params, left, right)
    return collatz(params, tree)


@jax.custom_vjp
def reversed_gradient(x: Array, strength: Array) -> Array:
    return jnp.sin(x)


reversed_gradient.defvjp(
    lambda x, strength: (jnp.sin(x), (x, strength)),
    lambda residuals, g: (-residuals[1] * g * jnp.cos(residuals[0]), jnp.zeros_like(residuals[1])),
)


def doubled(limit: float, x: Array) -> Array:
    return 2.0 * x


clipped_gradient: Any = jax.custom_vjp(doubled, nondiff_argnums=(0,))
clipped_gradient.defvjp(lambda limit, x: (2.0 * x, None), lambda limit, _, g: (jnp.clip(g, -limit, limit),))


@jitbatch
def custom_vjp_cell(params: Params, x: Array, h: Array) -> Array:
    return reversed_gradient(x @ params["x"] + h, params["b"])


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def custom_vjp_inside(params: Params, xs: Array) -> Array:
    """Functions with their own backward rule, inside a cell and bare."""
    h = params["h0"]
    for x in xs:
        h = clipped_gradient(0.3, custom_vjp_cell(params, x, h))
    return h


@jax.custom_jvp
def newton_sqrt(y: Array) -> Array:
    """A while_loop that reverse mode could not take apart: its derivative is given."""

    def step(root: Array) -> Array:
        return 0.5 * (root + y / root)

    return lax.while_loop(lambda root: jnp.any(jnp.abs(root * root - y) > 1e-4), step, y + 1.0)


@newton_sqrt.defjvp
def _newton_sqrt_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    root = newton_sqrt(*primals)
    return root, tangents[0] / (2.0 * root)


@jitbatch
def custom_jvp_cell(params: Params, x: Array, h: Array) -> Array:
    return newton_sqrt(1.0 + jnp.square(x @ params["x"] + h))


@workload(rnn_params, sequences, float_inputs=True, size=3)
@jitbatch
def custom_jvp_inside(params: Params, xs: Array) -> Array:
    """A function with its own forward rule around a while_loop, inside a cell and bare."""
    h = params["h0"]
    for x in xs:
        h = custom_jvp_cell(params, x, h)
    return h + newton_sqrt(1.0 + h)


def keyed_sequences(rng: np.random.Generator, n: int) -> list[Params]:
    return [{"key": jax.random.key(int(rng.integers(1000))), "xs": xs} for xs in sequences(rng, n)]


@jitbatch
def dropout_cell(params: Params, key: Array, x: Array, h: Array) -> Array:
    h = jnp.tanh(x @ params["x"] + h @ params["h"])
    keep = jax.random.bernoulli(key, 0.7, h.shape)
    return jnp.where(keep, h / 0.7, 0.0)


@workload(rnn_params, keyed_sequences, float_inputs=True)
@jitbatch
def dropout_keys(params: Params, sample: Params) -> dict[str, Array]:
    """A typed key a sample, split and folded between the cells, drawn from inside and outside of them."""
    key, noise_key = jax.random.split(sample["key"])
    h = params["h0"] + 0.1 * jax.random.normal(noise_key, (HIDDEN,))
    for i, x in enumerate(sample["xs"]):
        h = dropout_cell(params, jax.random.fold_in(key, i), x, h)
    return {"h": h, "key": key}


@jitbatch
def counted_leaf(params: Params, word: Any) -> tuple[Array, Array, Array]:
    h = params["embed"][word]
    return h, jnp.int32(1), word % 2 == 0


@jitbatch
def counted_node(params: Params, left: Any, right: Any) -> tuple[Array, Array, Array]:
    h = jnp.where(left[2], left[0], right[0] @ params["w"]) * jnp.minimum(left[1], 3)
    return h, left[1] + right[1], left[2] ^ right[2]


@jitbatch
def count_hash(params: Params, count: Array, odd: Array) -> Array:
    mixed = count.astype(jnp.uint32) * jnp.uint32(2654435761)
    return jnp.where(odd, mixed >> 3, ~mixed)


@workload(weights(embed=(VOCAB, HIDDEN), w=(HIDDEN, HIDDEN)), token_trees)
@jitbatch
def ints_and_bools(params: Params, tree: Tree) -> dict[str, Array]:
    """Integers and booleans from cell to cell."""

    def visit(node: Tree) -> tuple[Array, Array, Array]:
        if isinstance(node, tuple):
            return counted_node(params, *map(visit, node))
        return counted_leaf(params, node)

    h, count, odd = visit(tree)
    return {
        "h": h,
        "count": count,
        "odd": odd,
        "hash": count_hash(params, count, odd),
        "any": odd | (count > 2),
    }


def mixed_params(key: Array) -> Params:
    drawn = weights(half=(INPUT, HIDDEN), brain=(HIDDEN, HIDDEN), single=(HIDDEN, HIDDEN))(key)
    return {
        "half": drawn["half"].astype(jnp.float16),
        "brain": drawn["brain"].astype(jnp.bfloat16),
        "single": drawn["single"],
        "table": jnp.arange(-6, 6, dtype=jnp.int8).reshape(INPUT, HIDDEN),
    }


@jitbatch
def half_cell(params: Params, x: Array) -> Array:
    return jnp.tanh(x.astype(jnp.float16) @ params["half"])


@jitbatch
def brain_cell(params: Params, h: Array) -> Array:
    return h.astype(jnp.bfloat16) @ params["brain"]


@jitbatch
def quantised_cell(params: Params, codes: Array) -> Array:
    return lax.dot(codes, params["table"], preferred_element_type=jnp.int32)


@jitbatch
def joined_cell(params: Params, brain: Array, codes: Array) -> Array:
    return jnp.tanh(brain.astype(jnp.float32) @ params["single"] + 0.01 * codes)


def mixed_sequences(rng: np.random.Generator, n: int) -> list[Params]:
    return [{"xs": xs, "codes": jnp.asarray(rng.integers(-9, 9, size=xs.shape), jnp.int8)} for xs in sequences(rng, n)]


@workload(mixed_params, mixed_sequences, float_inputs=True, low_precision=True)
@jitbatch
def mixed_dtypes(params: Params, sample: Params) -> dict[str, Array]:
    """float32, float16, bfloat16, int8 and int32 values in one sample."""
    halves = [half_cell(params, x) for x in sample["xs"]]
    brains = [brain_cell(params, half) for half in halves]
    codes = [quantised_cell(params, row) for row in sample["codes"]]
    total = jnp.zeros(HIDDEN)
    for brain, code in zip(brains, codes, strict=True):
        total = total + joined_cell(params, brain, code)
    return {
        "total": total,
        "half": halves[0],
        "brain": brains[-1],
        "codes": codes[-1],
        "int8": sample["codes"][-1] * 2,
    }


@workload(weights(embed=(VOCAB, HIDDEN), w=(HIDDEN, HIDDEN)), token_sequences)
@jitbatch
def embedding_lookup(params: Params, words: Array) -> dict[str, Array]:
    """Look-ups of whole rows of tokens, of one token in a cell, and by a computed index."""
    rows = params["embed"][words]
    taken = jnp.take(params["embed"], (words + 1) % VOCAB, axis=0)
    last = leaf({"embed": params["embed"]}, words[-1])
    return {"bag": jnp.tanh(rows.mean(0) @ params["w"]) + taken.sum(0), "last": last.h * words[0]}


@jitbatch
def conv_cell(params: Params, image: Array) -> Array:
    image = jnp.pad(image, ((0, 0), (1, 1), (1, 1)))
    out = lax.conv_general_dilated(image[None], params["kernel"], window_strides=(2, 2), padding="VALID")
    return jax.nn.silu(out[0] + params["bias"][:, None, None])


@workload(
    weights(kernel=(2, 2, 3, 3), bias=(2,)),
    lambda rng, n: [normal(rng, 2, 2 << i % 2, 2 << i % 2) for i in range(n)],
    float_inputs=True,
)
@jitbatch
def convolution(params: Params, image: Array) -> Array:
    """As many convolutions as the image's size asks for: Python control flow on shapes."""
    while image.shape[1] > 1:
        image = conv_cell(params, image)
    return image.mean((1, 2))


@jitbatch
def bilinear_cell(params: Params, x: Array, y: Array) -> Array:
    return jax.nn.gelu(jnp.einsum("i,ijk,j->k", x, params["cube"], y))


@workload(weights(cube=(INPUT, INPUT, INPUT), w=(INPUT, INPUT)), vector_trees, float_inputs=True)
@jitbatch
def einsum_and_activations(params: Params, tree: Tree) -> Array:
    """einsum, relu, silu, gelu and others, inside cells and between them."""
    if not isinstance(tree, tuple):
        return jax.nn.silu(tree) + jax.nn.softplus(tree)
    left, right = (einsum_and_activations(params, child) for child in tree)
    joined = bilinear_cell(params, jax.nn.relu(left), jax.nn.leaky_relu(right))
    return jax.nn.standardize(joined + jax.nn.elu(left) + jnp.einsum("ij,j->i", params["w"], right))


@jitbatch
def delicate_cell(params: Params, x: Array, h: Array) -> Array:
    h = jnp.log(x @ jnp.exp(params["x"])) + h
    return h / jnp.sqrt(jnp.sum(h * h)) + 1.0 / x.sum()


@workload(rnn_params, lambda rng, n: [jnp.abs(xs) + 0.5 for xs in sequences(rng, n)], float_inputs=True)
@jitbatch
def delicate_cells(params: Params, xs: Array) -> Array:
    """Logarithms, roots and quotients, whose derivatives at zero are not finite: padding must not show."""
    h = params["h0"]
    for x in xs:
        h = delicate_cell(params, x, h)
    return h


def scaled_by(constant: Any) -> Any:
    @jitbatch
    def scaled(params: Params, x: Array) -> Array:
        return x * constant

    return scaled


def signed_by(constant: np.ndarray) -> Any:
    @jitbatch
    def signed(params: Params, x: Array) -> Array:
        return jnp.copysign(x, constant)

    return signed


SCALES = [scaled_by(constant) for constant in (2, 2.0, True, np.int32(2), np.float32(2.0), 2.5)]
SIGNS = [signed_by(np.array(constant, np.float32)) for constant in (0.0, -0.0)]


@workload(
    weights(w=(INPUT,)),
    lambda rng, n: [jnp.asarray(rng.integers(1, 9, size=(1 + i % 2, INPUT)), jnp.int8) for i in range(n)],
    low_precision=True,
    size=3,
)
@jitbatch
def lookalike_cells(params: Params, rows: Array) -> dict[str, list[Array]]:
    """Cells that differ only in the type, the weak type or the sign bit of one constant."""
    row = rows[-1]
    brain = params["w"].astype(jnp.bfloat16) * row.astype(jnp.bfloat16)
    return {
        "int8": [cell(params, row) for cell in SCALES],
        "bfloat16": [cell(params, brain) for cell in SCALES],
        "signs": [cell(params, params["w"] * row) for cell in SIGNS],
    }


@jitbatch
def update_cell(params: Params, memory: Array, x: Array, where: Any) -> Array:
    return memory.at[where].set(jnp.tanh(x @ params["x"])).at[0].add(1.0)


@workload(
    rnn_params,
    lambda rng, n: [
        {"xs": xs, "where": jnp.asarray(rng.integers(3, size=len(xs)), jnp.int32), "start": jnp.int32(i % 2)}
        for i, xs in enumerate(long_sequences(rng, n))
    ],
    float_inputs=True,
)
@jitbatch
def array_updates(params: Params, sample: Params) -> dict[str, Array]:
    """Updates in place, computed indices and slices, sorting: in cells and bare."""
    memory = jnp.zeros((3, HIDDEN))
    for x, where in zip(sample["xs"], sample["where"], strict=True):
        memory = update_cell(params, memory, x, where)
    window = lax.dynamic_slice_in_dim(sample["xs"], sample["start"], 2)
    return {
        "memory": memory.at[-1].multiply(2.0),
        "row": sample["xs"][sample["start"] + 1],
        "window": window,
        "sorted": jnp.sort(memory.sum(0)),
        "argmax": jnp.argmax(memory[0]),
        "running": jnp.cumsum(lax.stop_gradient(memory[1])),
    }


# --- Where parameters come from, and what else can be a subgraph

FIXED = np.random.default_rng(5).normal(size=(INPUT, HIDDEN)).astype(np.float32)


def closed_over(weight: Array) -> Any:
    @jitbatch
    def closure_cell(params: Params, x: Array) -> Array:
        return jnp.tanh(x @ weight) * params["b"]

    return closure_cell


CLOSURES = [
    closed_over(jnp.asarray(FIXED)),
    closed_over(jnp.asarray(-FIXED)),
    closed_over(jnp.asarray(FIXED)),
]


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def parameters_in_closures(params: Params, xs: Array) -> Array:
    """Concrete arrays that cells and the function close over are constants."""
    total = jnp.asarray(FIXED).sum(0)
    for i, x in enumerate(xs):
        total = total + CLOSURES[i % 3](params, x) + x @ FIXED
    return total


@jax.jit
def jitted_leaf(params: Params, x: Array) -> Array:
    return jnp.tanh(x @ params["x"])


@functools.partial(jax.jit, static_argnames="scale")
def jitted_node(params: Params, left: Array, right: Array, *, scale: float) -> Array:
    return jnp.tanh(left @ params["h"] + scale * right)


@workload(rnn_params, vector_trees, float_inputs=True)
@jitbatch
def jitted_cells(params: Params, tree: Tree) -> Array:
    """The user's own jit functions are subgraphs."""

    def visit(node: Tree, depth: int) -> Array:
        if not isinstance(node, tuple):
            return jitted_leaf(params, node)
        left, right = (visit(child, depth + 1) for child in node)
        return jitted_node(params, left, right, scale=0.5 if depth % 2 else 2.0)

    return visit(tree, 0)


@jitbatch
def energy(params: Params, h: Array) -> Array:
    return jnp.sum(jnp.sin(h) * (h @ params["h"]))


@workload(rnn_params, sequences, float_inputs=True, size=3)
@jitbatch
def inner_transformations(params: Params, xs: Array) -> dict[str, Array]:
    """Decorated calls inside vmap, grad, scan, jit and checkpoint within a sample are the plain function."""
    mapped = jax.vmap(rnn_cell, in_axes=(None, 0, None))(params, xs, params["h0"])
    last, _ = lax.scan(lambda h, x: (rnn_cell(params, x, h), None), params["h0"], xs)
    return {
        "vmap": mapped.sum(0),
        "grad": jax.grad(energy, argnums=1)(params, last),
        "jit": jax.jit(lambda h: energy(params, h) + rnn_cell(params, xs[0], h).sum())(last),
        "checkpoint": jax.checkpoint(rnn_cell)(params, xs[-1], last),
    }


@jitbatch
def prior_cell(params: Params) -> Array:
    return jnp.tanh(params["b"] * params["h0"])


@jitbatch
def mixing_cell(mixed: Array, gain: Array, x: Array, h: Array) -> Array:
    return jnp.tanh(x @ mixed + gain * h)


@workload(rnn_params, sequences, float_inputs=True)
@jitbatch
def shared_values(params: Params, xs: Array) -> dict[str, Array]:
    """Operations and a subgraph on shared arguments alone, read by cells and returned."""
    mixed = params["x"] @ params["h"]
    gain = jax.nn.softplus(params["b"]) + jnp.ones(HIDDEN)
    h = prior = prior_cell(params)
    for x in xs:
        h = mixing_cell(mixed, gain, x, h)
    return {"h": h, "mixed": mixed, "prior": prior, "constant": jnp.arange(3)}


@workload(rnn_params, sequences, size=3)
@jitbatch
def shared_only(params: Params, xs: Array) -> Array:
    """A result that no sample has a part in."""
    return jnp.tanh(params["h0"] @ params["h"])


@workload(rnn_params, lambda rng, n: [(xs, normal(rng, INPUT)) for xs in sequences(rng, n)], float_inputs=True)
@jitbatch
def no_subgraph(params: Params, sample: tuple[Array, Array]) -> dict[str, Array]:
    """No subgraph call at all, an unused input, and one that is returned as it came."""
    xs, x = sample
    return {"h": jnp.tanh(xs @ params["x"]).sum(0) + params["b"], "same": x}


class TreeNet(nnx.Module):
    """A Flax nnx module with decorated methods: `self` is the shared argument."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCAB, HIDDEN, rngs=rngs)
        self.join = nnx.Linear(2 * HIDDEN, HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    @jitbatch
    def leaf(self, word: Any) -> Array:
        return self.embed(jnp.asarray(word))

    @jitbatch
    def compose(self, left: Array, right: Array) -> Array:
        return jax.nn.silu(self.join(jnp.concatenate([left, right])))

    def encode(self, tree: Tree) -> Array:
        if isinstance(tree, tuple):
            return self.compose(*map(self.encode, tree))
        return self.leaf(tree)

    @jitbatch
    def nnx_methods(self, tree: Tree) -> Array:
        return self.out(self.encode(tree))


workload(lambda key: TreeNet(nnx.Rngs(key)), token_trees)(TreeNet.nnx_methods)


class LinenCell(nn.Module):
    """A Linen cell, used through `apply`."""

    @nn.compact
    def __call__(self, left: Array, right: Array) -> Array:
        h = nn.Dense(HIDDEN)(jnp.concatenate([left, right]))
        return nn.Dense(INPUT)(nn.LayerNorm()(nn.gelu(h)))


LINEN_CELL = LinenCell()


@jitbatch
def linen_join(variables: Any, left: Array, right: Array) -> Array:
    return LINEN_CELL.apply(variables, left, right)  # pyright: ignore[reportReturnType]


@workload(lambda key: LINEN_CELL.init(key, jnp.zeros(INPUT), jnp.zeros(INPUT)), vector_trees, float_inputs=True)
@jitbatch
def linen_apply(variables: Any, tree: Tree) -> Array:
    if not isinstance(tree, tuple):
        return tree
    return linen_join(variables, *(linen_apply(variables, child) for child in tree))


class EquinoxNet(eqx.Module):
    """An Equinox module: its activation function is a leaf."""

    mlp: eqx.nn.MLP
    initial: Array

    def __init__(self, key: Array) -> None:
        self.mlp = eqx.nn.MLP(INPUT + HIDDEN, HIDDEN, width_size=5, depth=1, key=key)
        self.initial = jnp.ones(HIDDEN)


@jitbatch
def equinox_step(net: EquinoxNet, x: Array, h: Array) -> Array:
    return net.mlp(jnp.concatenate([x, h]))


@workload(EquinoxNet, sequences, float_inputs=True)
@jitbatch
def equinox_module(net: EquinoxNet, xs: Array) -> Array:
    h = net.initial
    for x in xs:
        h = equinox_step(net, x, h)
    return h


# --- What a sample may be


def linked_lists(rng: np.random.Generator, n: int) -> list[Params]:
    samples = []
    for i in range(n):
        node: Params = {"x": normal(rng, INPUT)}
        for step in range(i % 4):
            node = {"x": normal(rng, INPUT), "next": node}
            if step % 2:
                node["skip"] = normal(rng, HIDDEN)
        samples.append(node)
    return samples


@workload(rnn_params, linked_lists, float_inputs=True)
@jitbatch
def dict_samples(params: Params, node: Params) -> Array:
    """Dicts, whose keys say what to do."""
    h = dict_samples(params, node["next"]) if "next" in node else params["h0"]
    return rnn_cell(params, node["x"], h + node["skip"] if "skip" in node else h)


class Branch(NamedTuple):
    left: Any
    right: Any
    gain: Array


class Tip(NamedTuple):
    x: Array


def named_tuple_trees(rng: np.random.Generator, n: int) -> list[Branch | Tip]:
    def build(tree: Tree) -> Branch | Tip:
        if isinstance(tree, tuple):
            return Branch(*map(build, tree), gain=normal(rng))
        return Tip(tree)

    return [build(tree) for tree in vector_trees(rng, n)]


@workload(weights(add=(INPUT, INPUT)), named_tuple_trees, float_inputs=True)
@jitbatch
def named_tuple_samples(params: Params, tree: Branch | Tip) -> Array:
    """Two kinds of NamedTuple, told apart by their type."""
    if isinstance(tree, Tip):
        return tree.x
    left, right = named_tuple_samples(params, tree.left), named_tuple_samples(params, tree.right)
    return tree.gain * add_node(params, left, right)


@jax.tree_util.register_dataclass
@dataclass
class Item:
    """A registered dataclass: `kind` is part of its structure."""

    x: Array
    parts: list[Item]
    kind: str = field(metadata={"static": True})


def items(rng: np.random.Generator, n: int) -> list[Item]:
    def item(depth: int) -> Item:
        parts = [item(depth - 1) for _ in range(rng.integers(3) if depth else 0)]
        return Item(normal(rng, INPUT), parts, str(rng.choice(["plain", "twisted"])))

    return [item(1 + i % 2) for i in range(n)]


@jitbatch
def twist(params: Params, x: Array) -> Array:
    return jnp.sin(x @ params["add"])


@workload(weights(add=(INPUT, INPUT)), items, float_inputs=True)
@jitbatch
def dataclass_samples(params: Params, item: Item) -> Array:
    total = twist(params, item.x) if item.kind == "twisted" else item.x
    for part in item.parts:
        total = add_node(params, total, dataclass_samples(params, part))
    return total


@jitbatch
def op_add(params: Params, x: Array, y: Array) -> Array:
    return x + params["bias"] * y


@jitbatch
def op_mul(params: Params, x: Array, y: Array) -> Array:
    return x * y


@jitbatch
def op_sin(params: Params, x: Array) -> Array:
    return jnp.sin(x)


OPERATORS: dict[str, Any] = {"add": op_add, "mul": op_mul, "sin": op_sin, "neg": lambda params, x: -x}


def expressions(rng: np.random.Generator, n: int) -> list[Any]:
    def expression(depth: int) -> Any:
        if depth == 0:
            return normal(rng)
        name = str(rng.choice(list(OPERATORS)))
        arity = 2 if name in ("add", "mul") else 1
        return [Static(name), *(expression(depth - 1) for _ in range(arity))]

    return [expression(i % 4) for i in range(n)]


@workload(weights(bias=()), expressions, float_inputs=True, size=5)
@jitbatch
def static_operators(params: Params, tree: Any) -> Array:
    """Expressions over numbers, whose operators are `Static`."""
    if not isinstance(tree, list):
        return tree
    name, *operands = tree
    return OPERATORS[name.value](params, *(static_operators(params, operand) for operand in operands))


def number_samples(rng: np.random.Generator, n: int) -> list[Params]:
    return [
        {
            "scale": float(rng.normal()),
            "count": int(rng.integers(5)),
            "flag": bool(i % 2),
            "extra": [float(rng.normal()) for _ in range(i % 3)],
        }
        for i in range(n)
    ]


@jitbatch
def number_cell(params: Params, scale: Any, count: Any) -> Array:
    return jnp.tanh(params["b"] * scale + count)


@workload(rnn_params, number_samples, float_inputs=True, low_precision=True)
@jitbatch
def python_numbers(params: Params, sample: Params) -> dict[str, Array]:
    """Python floats, ints and bools as leaves: weakly typed, as in `jit`."""
    h = number_cell(params, sample["scale"], sample["count"])
    for number in sample["extra"]:
        h = number_cell(params, number, 1) + h
    brain = params["h0"].astype(jnp.bfloat16) * sample["scale"]
    return {"h": jnp.where(sample["flag"], h, -h), "brain": brain, "count": jnp.asarray(sample["count"]) + 1}


@workload(
    rnn_params,
    lambda rng, n: [
        {"xs": rng.normal(size=(1 + i % 3, INPUT)), "picks": rng.integers(HIDDEN, size=2)} for i in range(n)
    ],
    float_inputs=True,
)
@jitbatch
def numpy_leaves(params: Params, sample: Params) -> Array:
    """NumPy arrays of 64 bits as leaves: JAX takes them for 32."""
    h = run_rnn(params, params["h0"], sample["xs"])[-1]
    return h[jnp.asarray(sample["picks"])]
