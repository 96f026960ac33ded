"""Random samples, as Python text. Numbers of seeds are small, so that equal values occur."""

from __future__ import annotations

from fuzz.choices import Choices

PARAMETERS = """
def vector(seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=3))


def rows(seed, count):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(count, 3)))


params = {
    "w0": rows(100, 3) / 2, "w1": rows(101, 3) / 2, "wide": jnp.tile(rows(102, 6) / 4, (1, 2)), "b0": vector(103),
    "b1": vector(104), "embed": rows(105, 5), "scale": vector(106)[0], "order": jnp.array([2, 0, 1]), "h0": vector(107),
}
"""
"""The beginning of every program: helpers that samples are written with, and the shared argument."""


INTEGERS = ("{}", "{}", "{}", "np.int8({})", "jnp.uint8({})", "np.int64({})")


def leaf(choices: Choices, kind: str) -> str:
    """A leaf of a sample."""
    seed = choices.below(6)
    if kind == "v":
        return f"vector({seed})"
    if kind == "m":
        return f"rows({seed}, 3)"
    if kind == "z":
        return ("jnp.zeros(0)", "np.zeros(0)")[seed % 2]
    if kind == "i":
        return choices.of(INTEGERS).format(seed)
    if kind == "s":
        return str(seed / 4) if seed else choices.of(("0.0", "-0.0"))
    if kind == "b":
        return ("True", "np.bool_(False)")[seed % 2]
    return f"jax.random.key({seed})"


def tree(choices: Choices, kind: str, arity: int, depth: int = 3) -> str:
    """Nested tuples; two children each for arity 2, else one up to `arity`."""
    if depth == 0 or not choices.often(35 if depth < 3 else 90):
        return leaf(choices, kind)
    count = 2 if arity == 2 else choices.between(1, arity)
    children = [tree(choices, kind, arity, depth - 1)]
    for _ in range(count - 1):
        repeats = choices.often(15)
        children.append(children[-1] if repeats else tree(choices, kind, arity, depth - 1))
    return f"({', '.join(children)},)"


def node(choices: Choices, kind: str, depth: int = 3) -> str:
    """Nested dicts with a list of children and an operator."""
    count = choices.of((0, 0, 1, 2)) if depth < 3 else choices.between(1, 3)
    kids = ", ".join([node(choices, kind, depth - 1) for _ in range(min(count, depth))])
    operator = choices.of(('"a"', '"b"', "1", "1.0"))
    return f'{{"x": {leaf(choices, kind)}, "op": Static({operator}), "kids": [{kids}]}}'


def dag(choices: Choices, kind: str) -> str:
    """Nodes that read some of the nodes before them."""
    size = choices.of((1, 2, 3, 4, 4, 6))
    edges = [tuple(sorted({choices.below(i) for _ in range(choices.below(4))})) if i else () for i in range(size)]
    values = ", ".join([leaf(choices, kind) for _ in range(size)])
    return f'{{"x": [{values}], "edges": Static({tuple(edges)})}}'


def sequence(choices: Choices, kind: str) -> str:
    size = choices.of((1, 2, 3, 4, 6))
    if kind == "v":
        return f"rows({choices.below(4)}, {size})"
    if kind in "is":
        return f"jnp.array([{', '.join([leaf(choices, kind) for _ in range(size)])}])"
    return f"[{', '.join([leaf(choices, kind) for _ in range(size)])}]"
