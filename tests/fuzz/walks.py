"""How a program walks over its sample: recursion over a tree, a loop over rows, a graph in topological order."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz import samples
from fuzz.cells import REDUCTIONS, Cell, Scope, indented, make_cell
from fuzz.choices import Choices


@dataclass(frozen=True)
class Walk:
    """A function `encode(p, sample)` that makes a state, with the cells that it calls.

    Attributes:
        sources: definitions, in order.
        states: the types of what it makes: a vector and perhaps more.
        collects: whether it makes a list of states instead, one for each part of the sample.
        samples: the texts of the samples.
        kind: the type of their leaves.
        again: an expression of a sample with the same leaves in another order.
    """

    sources: list[str]
    states: str
    collects: bool
    samples: list[str]
    kind: str
    again: str


def make_walk(choices: Choices, callees: list[Cell]) -> Walk:
    """A random walk; `callees` are cells that other cells may call."""
    kind = choices.of("vvviiisbkmz")
    states = choices.of(("v", "v", "vv", "vs"))
    cells = Cells(choices, callees, kind, states)
    shape = choices.of((_tree, _sequence, _nodes, _dag))
    count = choices.of((1, 2, 2, 3))
    return shape(choices, cells, count)


class Cells:
    """The cells of a walk, made when they are mentioned."""

    def __init__(self, choices: Choices, callees: list[Cell], kind: str, states: str):
        self.choices = choices
        self.callees = callees
        self.kind = kind
        self.states = states
        self.sources: list[str] = []

    def cell(self, reads: str, makes: str | None = None) -> str:
        """The name of a new cell."""
        name = f"cell{len(self.sources)}"
        self.sources.append(make_cell(self.choices, name, reads, makes or self.states, self.callees).source)
        return name

    def leaf(self, value: str) -> str:
        times = 2 if self.choices.often(10) else 1
        return f"{self.cell(self.kind * times)}(p, {', '.join([value] * times)})"

    def spread(self, state: str) -> str:
        """A state as arguments."""
        return state if len(self.states) == 1 else f"*{state}"

    def combine(self, kids: str, x: str | None = None, may_be_binary: bool = False) -> str:
        """An expression of a state from a list of states, and perhaps from a leaf."""
        choices = self.choices
        extra, extra_kind = (f", {x}", self.kind) if x else ("", "")
        vectors = kids if len(self.states) == 1 else f"[s[0] for s in {kids}]"
        ways = 5 if may_be_binary else 4
        way = choices.below(ways)
        if way == 0:
            return f"{self.cell(extra_kind + 'V')}(p{extra}, {vectors})"
        if way == 1:
            reduced = choices.of(REDUCTIONS).format(f"({vectors})")
            return f"{self.cell(extra_kind + 'v')}(p{extra}, {reduced})"
        if way == 2:
            term, whole = self.cell("v", "v"), self.cell(extra_kind + "v")
            return f"{whole}(p{extra}, sum({term}(p, k) for k in {vectors}))"
        if way == 3:
            pair = self.cell(self.states * 2)
            folded = f"functools.reduce(lambda l, r: {pair}(p, {self.spread('l')}, {self.spread('r')}), {kids})"
            return f"{self.cell(extra_kind + self.states)}(p{extra}, {self.spread(folded)})"
        pair = self.cell(extra_kind + self.states * 2)
        return f"{pair}(p{extra}, {self.spread(f'{kids}[0]')}, {self.spread(f'{kids}[1]')})"


RECURSIONS = ("", "@jitbatch\n", "method", "closure")


def _recursive(choices: Choices, body: str) -> str:
    """A recursive function `encode`: plain, decorated, a method, or a closure over `p`."""
    way = choices.of(RECURSIONS)
    if way == "method":
        inner = indented(body.replace("encode(p, ", "self.encode(").splitlines())
        return (
            "@jax.tree_util.register_dataclass\n@dataclasses.dataclass\nclass Model:\n    p: dict\n\n"
            f"    @jitbatch\n    def encode(self, t):\n        p = self.p\n{inner}\n\n"
            "def encode(p, t):\n    return Model(p).encode(t)\n"
        )
    if way == "closure":
        inner = indented(body.replace("encode(p, ", "walk(").splitlines())
        return f"def encode(p, tree):\n    def walk(t):\n{inner}\n    return walk(tree)\n"
    return f"{way}def encode(p, t):\n{body}"


def _tree(choices: Choices, cells: Cells, count: int) -> Walk:
    arity = choices.of((2, 3))
    leaf = cells.leaf("t")
    combined = cells.combine("kids", may_be_binary=arity == 2)
    extra = ""
    if choices.often(30):
        extra = f"        if len(kids) == {choices.between(1, 3)}:\n            return {cells.combine('kids')}\n"
    body = (
        "    if isinstance(t, tuple):\n"
        f"        kids = [encode(p, child) for child in t]\n{extra}"
        f"        return {combined}\n"
        f"    return {leaf}\n"
    )
    source = _recursive(choices, body)
    drawn = [samples.tree(choices, cells.kind, arity) for _ in range(count)]
    return Walk([*cells.sources, source], cells.states, False, drawn, cells.kind, "mirrored(sample)")


def _nodes(choices: Choices, cells: Cells, count: int) -> Walk:
    leaf = cells.leaf('t["x"]')
    combined = cells.combine("kids", 't["x"]' if choices.often(60) else None)
    other = cells.combine("kids") if choices.often(50) else combined
    value = choices.of(('"a"', "1"))
    body = (
        '    kids = [encode(p, child) for child in t["kids"]]\n'
        "    if not kids:\n"
        f"        return {leaf}\n"
        f'    if t["op"] == Static({value}):\n'
        f"        return {combined}\n"
        f"    return {other}\n"
    )
    source = _recursive(choices, body)
    drawn = [samples.node(choices, cells.kind) for _ in range(count)]
    return Walk([*cells.sources, source], cells.states, False, drawn, cells.kind, "mirrored(sample)")


ORDERS = (
    "xs",
    "xs",
    "reversed(xs)",
    "xs[::-1]",
    "xs[1:]",
    "[xs[i] for i in range(len(xs))]",
    "xs[::2]",
    "[*xs, xs[0]]",
)


def _sequence(choices: Choices, cells: Cells, count: int) -> Walk:
    shared = {"v": 'p["h0"]', "vv": '(p["h0"], p["b0"])', "vs": '(p["h0"], p["scale"])'}
    zeros = {"v": "jnp.zeros(3)", "vv": "(jnp.zeros(3), jnp.zeros(3))", "vs": "(jnp.zeros(3), 0.0)"}
    first = choices.below(3)
    start = cells.leaf("xs[0]") if first == 0 else (shared, zeros)[first - 1][cells.states]
    step = cells.cell(cells.kind + cells.states)
    order = choices.of(ORDERS)
    bare = Scope(choices, cells.callees, [("h" if cells.states == "v" else "h[0]", "v")])
    for _ in range(choices.below(3)):
        bare.add_statement()
    if bare.lines:
        last = bare.pick("v")
        bare.lines.append(f"h = h + 0.5 * {last}" if cells.states == "v" else f"h = h[0] + 0.5 * {last}, h[1]")
    collects = choices.often(35)
    turn = [f"h = {step}(p, x, {cells.spread('h')})", *bare.lines, "hs.append(h)"]
    source = f"def encode(p, xs):\n    h = {start}\n    hs = [h]\n    for x in {order}:\n{indented(turn, 2)}"
    source += f"    return {'hs' if collects else 'h'}\n"
    drawn = [samples.sequence(choices, cells.kind) for _ in range(count)]
    return Walk([*cells.sources, source], cells.states, collects, drawn, cells.kind, "sample[::-1]")


def _dag(choices: Choices, cells: Cells, count: int) -> Walk:
    leaf = cells.leaf("x")
    combined = cells.combine("before", "x" if choices.often(60) else None)
    collects = choices.often(35)
    source = (
        "def encode(p, g):\n    hs = []\n"
        '    for x, places in zip(g["x"], g["edges"].value):\n'
        "        before = [hs[j] for j in places]\n"
        f"        hs.append({combined} if before else {leaf})\n"
        f"    return {'hs' if collects else 'hs[-1]'}\n"
    )
    drawn = [samples.dag(choices, cells.kind) for _ in range(count)]
    return Walk([*cells.sources, source], cells.states, collects, drawn, cells.kind, "sample")
