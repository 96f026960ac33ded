"""JAX with `vmap` over padded samples.

One scan runs over the nodes of a tree, or over the words of a sentence, as long as the longest sample needs. The padded
arrays of a sample are prepared before; stacking those of a minibatch is counted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_models import Trainer, numbers, workload_of
from worker import Runner, Task, serve

Arrays = dict[str, np.ndarray]


def padded(values: Sequence[Any], length: int, fill: int = 0) -> np.ndarray:
    array = np.full((length, *np.shape(values)[1:]), fill, np.int32)
    array[: len(values)] = values
    return array


def gates(i: jax.Array, o: jax.Array, u: jax.Array, kept: Any = 0.0) -> tuple[jax.Array, jax.Array]:
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + kept
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm(x: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, o, u = jnp.split(x, 4)
    return gates(i, o, u, jax.nn.sigmoid(f + 1) * c)


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Where a label is -1, zero."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -jnp.where(labels >= 0, chosen, 0).sum()


# --- Pairs of dependency trees: nodes in post-order, each adds its state to its parent's sums


def flat_dependency(tree: Any) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    parents: list[int] = []

    def add(node: Any) -> int:
        below = [add(child) for child in node.children]
        tokens.append(node.token)
        parents.append(-1)
        for child in below:
            parents[child] = len(tokens) - 1
        return len(tokens) - 1

    add(tree)
    return tokens, parents


def sick(samples: Sequence[Any]) -> tuple[list[Arrays], Callable[[Any, Any], jax.Array]]:
    flat = [[flat_dependency(tree) for tree in (pair.left, pair.right)] for pair in samples]
    length = max(len(tokens) for pair in flat for tokens, _ in pair)
    # The parent of a root is a row behind all nodes, that of padding is one further.
    arrays = [
        {
            "tokens": np.stack([padded(tokens, length) for tokens, _ in pair]),
            "parents": np.stack([padded([*parents[:-1], length], length, length + 1) for _, parents in pair]),
            "target": sample.target,
        }
        for pair, sample in zip(flat, samples, strict=True)
    ]

    def encode(params: Any, tokens: jax.Array, parents: jax.Array) -> jax.Array:
        hidden = len(params["b_f"])
        x = params["embed"][tokens]
        inputs = x @ params["w_iou"] + params["b_iou"]
        forgets = jnp.pad(x @ params["w_f"] + params["b_f"], ((0, 2), (0, 0)))

        def step(sums: jax.Array, node: Any) -> tuple[jax.Array, None]:
            position, x, parent = node
            h, kept = jnp.split(sums[position], 2)
            i, o, u = jnp.split(x + h @ params["u_iou"], 3)
            h, c = gates(i, o, u, kept)
            kept = jax.nn.sigmoid(forgets[parent] + h @ params["u_f"]) * c
            return sums.at[parent].add(jnp.concatenate([h, kept])), None

        sums = jnp.zeros((length + 2, 2 * hidden))
        sums, _ = jax.lax.scan(step, sums, (jnp.arange(length), inputs, parents))
        return sums[length, :hidden]

    def loss(params: Any, sample: Any) -> jax.Array:
        left, right = (encode(params, sample["tokens"][i], sample["parents"][i]) for i in range(2))
        similar = (left * right) @ params["product"] + jnp.abs(left - right) @ params["distance"]
        hidden = jax.nn.sigmoid(similar + params["b_similarity"])
        predicted = jax.nn.log_softmax(hidden @ params["out"] + params["b_out"])
        target = sample["target"]
        return (jax.scipy.special.xlogy(target, target) - target * predicted).sum()

    return arrays, loss


# --- Binary trees: nodes in post-order


def flat_binary(tree: Any) -> tuple[list[int], list[tuple[int, int]]]:
    tokens: list[int] = []
    children: list[tuple[int, int]] = []

    def add(node: Any) -> int:
        below = tuple(add(child) for child in node) if isinstance(node, tuple) else (0, 0)
        tokens.append(-1 if isinstance(node, tuple) else node)
        children.append((below[0], below[1]))
        return len(tokens) - 1

    add(tree)
    return tokens, children


def sst(samples: Sequence[Any]) -> tuple[list[Arrays], Callable[[Any, Any], jax.Array]]:
    flat = [flat_binary(sample.tree) for sample in samples]
    length = max(len(tokens) for tokens, _ in flat)
    arrays = [
        {
            "tokens": padded(tokens, length),
            "children": padded(children, length),
            "labels": padded(sample.labels, length, -1),
        }
        for (tokens, children), sample in zip(flat, samples, strict=True)
    ]

    def loss(params: Any, sample: Any) -> jax.Array:
        hidden = len(params["left"])
        weights = jnp.concatenate([params["left"], params["right"]])
        words = gates(*jnp.split(params["embed"][jnp.maximum(sample["tokens"], 0)] @ params["leaf"], 3, axis=-1))
        words = jnp.concatenate(words, axis=-1)

        def step(states: jax.Array, node: Any) -> tuple[jax.Array, jax.Array]:
            position, is_leaf, word, children = node
            left, right = states[children[0]], states[children[1]]
            both = jnp.concatenate([left[:hidden], right[:hidden]])
            i, fl, fr, o, u = jnp.split(both @ weights + params["bias"], 5)
            kept = jax.nn.sigmoid(fl) * left[hidden:] + jax.nn.sigmoid(fr) * right[hidden:]
            state = jnp.where(is_leaf, word, jnp.concatenate(gates(i, o, u, kept)))
            return states.at[position].set(state), state[:hidden]

        nodes = jnp.arange(length), sample["tokens"] >= 0, words, sample["children"]
        _, h = jax.lax.scan(step, jnp.zeros((length, 2 * hidden)), nodes)
        return cross_entropy(h @ params["out"], sample["labels"])

    return arrays, loss


# --- Expressions: one step for each argument that an operator reads


def flat_expression(expression: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The operators, and for each argument, in the order of reading, who reads it, and what: a token, or the complement
    of the number of a nested operator."""
    operators: list[int] = []
    reads: list[tuple[int, int]] = []

    def add(one: Any) -> int:
        number = len(operators)
        operators.append(one[0])
        for argument in one[1:]:
            reads.append((number, ~add(argument) if isinstance(argument, tuple) else argument))
        return number

    add(expression)
    return operators, reads


def listops(samples: Sequence[Any]) -> tuple[list[Arrays], Callable[[Any, Any], jax.Array]]:
    flat = [flat_expression(sample.expression) for sample in samples]
    most = max(len(operators) for operators, _ in flat)
    length = max(len(reads) for _, reads in flat)
    arrays = [
        {
            "operators": padded(operators, most + 1),
            "reads": np.concatenate([reads, np.full((length - len(reads), 2), (most, 0))]).astype(np.int32),
            "value": np.int32(sample.value),
        }
        for (operators, reads), sample in zip(flat, samples, strict=True)
    ]

    def loss(model: Any, sample: Any) -> jax.Array:
        table = model.embed.embedding[...]

        def step(states: Any, read: Any) -> tuple[Any, None]:
            h, c = states
            number, argument = read
            digits = jax.nn.softmax(model.out(h[~argument])) @ table[:10]
            x = jnp.where(argument < 0, digits, table[argument])
            new_h, new_c = lstm(model.gates(jnp.concatenate([h[number], x])), c[number])
            return (h.at[number].set(new_h), c.at[number].set(new_c)), None

        h = table[sample["operators"]]
        (h, _), _ = jax.lax.scan(step, (h, jnp.zeros_like(h)), sample["reads"])
        return cross_entropy(model.out(h[0]), sample["value"])

    return arrays, loss


# --- Sentences of words of characters


def tagger(samples: Sequence[Any]) -> tuple[list[Arrays], Callable[[Any, Any], jax.Array]]:
    length = max(len(sample.words) for sample in samples)
    longest = max(len(word.characters) for sample in samples for word in sample.words)
    arrays = [
        {
            "words": padded([word.word for word in sample.words], length),
            "characters": padded([padded(word.characters, longest, -1) for word in sample.words], length, -1),
            "tags": padded(sample.tags, length, -1),
        }
        for sample in samples
    ]

    def read(cell: Any, xs: jax.Array, real: jax.Array, reverse: bool) -> tuple[jax.Array, jax.Array]:
        """The last output and all outputs; padding leaves the state as it is."""
        size = xs.shape[-1]
        kernel = cell.gates.kernel[...]
        inputs = xs @ kernel[:size] + cell.gates.bias[...]

        def step(state: Any, one: Any) -> tuple[Any, jax.Array]:
            x, is_real = one
            new = lstm(x + state[0] @ kernel[size:], state[1])
            state = jax.tree.map(lambda now, before: jnp.where(is_real, now, before), new, state)
            return state, state[0]

        (h, _), outputs = jax.lax.scan(step, (cell.first_h[...], cell.first_c[...]), (inputs, real), reverse=reverse)
        return h, outputs

    def loss(model: Any, sample: Any) -> jax.Array:
        def spell(characters: jax.Array) -> jax.Array:
            xs = model.embed_character.embedding[jnp.maximum(characters, 0)]
            cells = (model.spelling.forward, False), (model.spelling.backward, True)
            return jnp.concatenate([read(cell, xs, characters >= 0, back)[0] for cell, back in cells])

        xs = jnp.concatenate([model.embed.embedding[sample["words"]], jax.vmap(spell)(sample["characters"])], axis=-1)
        cells = (model.context.forward, False), (model.context.backward, True)
        h = jnp.concatenate([read(cell, xs, sample["tags"] >= 0, back)[1] for cell, back in cells], axis=-1)
        return cross_entropy(model.out(h), sample["tags"])

    return arrays, loss


MODELS = {"SICK": sick, "SST": sst, "ListOps": listops, "tagger": tagger}


def make(task: Task) -> Runner:
    workload = workload_of(task)
    arrays, loss = MODELS[task.workload](workload.samples[: task.distinct])
    trainer = Trainer(lambda params, batch: jax.vmap(loss, (None, 0))(params, batch).mean(), workload.params)

    def run(batches: list[list[Any]], training: bool) -> list[float]:
        stacked = (jax.tree.map(lambda *leaves: np.stack(leaves), *batch) for batch in batches)
        return numbers([trainer.run(batch, training) for batch in stacked])

    return Runner(arrays, run)


serve(make, "jax", "jaxlib")
