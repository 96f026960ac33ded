"""Random cells: functions of a few statements over typed variables.

Types are letters: `v` a vector of 3, `s` a scalar, `m` a matrix of 3 by 3, `f` a float32 vector of 3, `i` an integer,
`b` a bool, `k` a random key, `z` a vector of nothing, and `V` a list of vectors. Every template has values and
derivatives of moderate size, so that a difference is an error and not a matter of conditioning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fuzz.choices import Choices


class Template(NamedTuple):
    """An expression: the type it makes, the types of the variables it reads, its text."""

    makes: str
    reads: str
    text: str


TEMPLATES = [
    Template(makes, reads, text)
    for makes, reads, text in (
        line.split(None, 2)
        for line in """
v v   jnp.tanh({0})
v vv  {0} + {1}
v vv  {0} * {1}
v v   jnp.tanh({0} @ p["w0"] + p["b0"])
v vv  jnp.tanh({0} @ p["w0"] + {1} @ p["w1"] + p["b1"])
v v   {0} @ p["w0"]
v v   {0} @ p["w1"] / 2
v v   {0} + p["b0"]
v v   {0} * p["b1"] - p["b0"]
v vv  {0} - 0.5 * {1}
v v   jax.nn.sigmoid({0} @ p["w1"])
v vs  {0} * {1}
v v   2.0 * jnp.sin({0})
v v   jnp.exp(-{0} * {0})
v v   jnp.sqrt({0} * {0} + 1)
v v   jnp.log1p({0} ** 2)
v v   jax.nn.softmax({0})
v v   jax.nn.relu({0}) + 0.1 * {0}
v v   jax.nn.gelu({0})
v v   jnp.cumsum({0})
v v   {0}[::-1]
v v   jnp.roll({0}, 1)
v v   jnp.sort({0})
v v   jnp.where({0} > 0, {0}, 0.5 * {0})
v v   jnp.clip({0}, -1, 1)
v v   jax.lax.stop_gradient({0}) + {0}
v v   {0} / (1 + jnp.linalg.norm({0} + 0.1))
v v   ({0} - {0}.mean()) / jnp.sqrt({0}.var() + 0.1)
v vv  jnp.maximum({0}, {1})
v vv  jnp.minimum({0}, 0.3 * {1})
v vv  jnp.logaddexp({0}, {1})
v vv  jnp.concatenate([{0}, {1}])[1:4]
v vv  jnp.stack([{0}, {1}]).sum(axis=0)
v vv  jnp.stack([{0}, {1}]).max(axis=0)
v vv  jnp.split(jnp.concatenate([{0}, {1}]) @ p["wide"], 2)[1]
v vb  jnp.where({1}, {0}, -{0})
v vb  jax.lax.cond({1}, jnp.sin, jnp.cos, {0})
v vs  jax.lax.cond({1} > 0, lambda a: a * {1}, lambda a: a - {1}, {0})
v vs  {0}.at[1].add({1})
v vs  jax.lax.dynamic_update_slice({0}, jnp.reshape({1}, 1), (1,))
v vi  {0}.at[{1} % 3].multiply(0.5)
v vi  jax.lax.switch({1} % 3, [jnp.sin, jnp.tanh, lambda a: 0.5 * a], {0})
v vi  {0} * jax.nn.one_hot({1} % 3, 3, dtype={0}.dtype)
v i   p["embed"][{0} % 5]
v i   jnp.take(p["embed"], {0} % 5, axis=0) * p["scale"]
v vk  {0} + 0.1 * jax.random.normal({1}, (3,))
v vk  jnp.where(jax.random.bernoulli({1}, 0.5, (3,)), {0}, 0)
v k   jax.random.uniform({0}, (3,), minval=-1.0)
v v   halved({0})
v v   bent({0})
v vv  gated({0}, {1})
v v   scanned(p["w0"], {0})
v v   looped({0})
v v   jax.checkpoint(lambda a: jnp.tanh(a * p["b0"]))({0})
v v   jax.vmap(lambda a: jnp.tanh(a) * p["scale"])({0})
v v   jitted(p["w1"], {0})
v v   {0} + constant
v v   {0} * np.array([0.5, -1.0, 0.25])
v v   {0}[p["order"]]
v v   p["b1"] * jnp.tanh(p["w0"]).sum() + {0}
v s   jnp.full(3, {0})
v s   jnp.tanh(p["b0"] * {0})
v m   {0}.sum(axis=1) / 3
v m   jnp.diagonal({0})
v mv  {0} @ {1} / 3
v f   {0}.astype(jnp.float64)
v vf  {0} + {1}
v z   jnp.full(3, 0.5 + {0}.sum())
v vz  jnp.concatenate([{0}, {1}])
v -   p["b0"]
v -   jnp.ones(3)
s v   {0}.mean()
s v   {0}[1]
s v   {0}.max()
s v   jax.nn.logsumexp({0})
s vv  {0} @ {1} / 3
s ss  jnp.tanh({0} - {1})
s s   jnp.cos({0})
s s   jnp.copysign(0.5, {0})
s s   {0} * p["scale"]
s sb  jnp.where({1}, {0}, 0.0)
s vi  {0}[{1} % 3]
s m   jnp.trace({0}) / 3
s i   jnp.float64({0} % 7) / 7
s f   {0}.sum()
s z   {0}.sum()
s -   p["scale"]
s -   jnp.float64(0.5)
m vv  jnp.outer({0}, {1})
m m   jnp.tanh({0} @ p["w0"])
m m   {0}.T
m v   {0}[:, None] * p["w1"]
m mm  jnp.einsum("ij,kj->ik", {0}, {1}) / 3
f v   {0}.astype(jnp.float32)
f ff  {0} * {1}
f f   jnp.tanh({0})
i i   {0} * 3 + 1
i ii  jnp.maximum({0}, {1})
i b   jnp.int32({0})
i i   {0} ^ 5
b s   {0} > 0.1
b bb  {0} ^ {1}
b i   {0} % 2 == 0
z z   jnp.tanh({0})
k k   jax.random.fold_in({0}, 3)
k k   jax.random.split({0})[1]
""".strip().splitlines()
    )
]

REDUCTIONS = """
sum({0})
jnp.stack({0}).mean(axis=0)
jnp.stack({0}).max(axis=0)
jnp.stack({0}).min(axis=0)
jnp.stack({0}).sum(axis=0)
sum(jnp.tanh(k @ p["w0"]) for k in {0})
sum(k * p["b0"] for k in {0}) / len({0})
functools.reduce(jnp.add, [jnp.sin(k) for k in {0}])
functools.reduce(jnp.maximum, {0})
functools.reduce(lambda a, b: jnp.tanh(a @ p["w0"] + b), {0})
jnp.mean(jnp.stack([jnp.tanh(k) for k in {0}]), axis=0)
jnp.array({0}).sum(axis=0)
jax.nn.softmax(jnp.stack({0}), axis=0).sum(axis=0) * {0}[0]
segment.softmax({0})[0] * {0}[-1]
segment.logsumexp([k @ p["w1"] for k in {0}])
segment.attend(p["b0"], {0}, [jnp.tanh(k) for k in {0}])
segment.attend_scores([k @ {0}[0] / 3 for k in {0}], {0})
segment.weighted_sum(segment.softmax([p["b1"] * k for k in {0}]), {0})
segment.mean([jnp.sin(k) for k in {0}])
segment.max({0})
sum(jax.lax.stop_gradient(jnp.stack({0}).max(axis=0)) - k for k in {0}) / len({0})
{0}[0] - 0.5 * {0}[-1]
""".strip().splitlines()
"""From a list of vectors to a vector."""

HELPERS = {
    "halved": """
@jax.custom_jvp
def halved(x):
    return 0.5 * x


@halved.defjvp
def halved_jvp(primals, tangents):
    return halved(primals[0]), 0.25 * jnp.cos(primals[0]) * tangents[0]
""",
    "bent": """
@jax.custom_vjp
def bent(x):
    return jnp.tanh(x)


bent.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g * jnp.cos(x),))
""",
    "gated": """
@jax.custom_vjp
def gated(x, y):
    return jnp.tanh(x) * y


gated.defvjp(lambda x, y: (jnp.tanh(x) * y, (x, y)), lambda kept, g: (g * kept[1] / 2, g * jnp.sin(kept[0])))
""",
    "scanned": """
def scanned(w, x):
    return jax.lax.scan(lambda h, a: (jnp.tanh(h @ w + a), h.sum()), x, x)[0]
""",
    "looped": """
def looped(x):
    return jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h) + 0.1 * i, x)
""",
    "jitted": """
@jax.jit
def jitted(w, x):
    return jnp.tanh(x @ w) + x
""",
    "mirrored": """
def mirrored(t):
    if isinstance(t, dict):
        return {**t, "kids": [mirrored(kid) for kid in reversed(t["kids"])]}
    return tuple(mirrored(kid) for kid in reversed(t)) if isinstance(t, tuple) else t
""",
    "varied": """
def changed(leaf, by):
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        return jax.random.fold_in(leaf, by)
    if jnp.result_type(leaf) == bool:
        return leaf ^ bool(by)
    if np.size(leaf) < 2:
        return leaf + (by if isinstance(leaf, int | float) else leaf.dtype.type(by))
    array = np.array(leaf)
    array.flat[-by] += by
    return array


def varied(sample, seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: changed(leaf, int(random.integers(3))), sample)
""",
    "constant": """
constant = jnp.array([0.5, -0.25, 1.0])
""",
}
"""Definitions that a text needs when it mentions their names."""


@dataclass(frozen=True)
class Cell:
    """A function in a program.

    Attributes:
        name: its name.
        reads: the types of its arguments after `p`.
        makes: the types of its results; several are a tuple.
        source: its definition.
    """

    name: str
    reads: str
    makes: str
    source: str


@dataclass
class Scope:
    """The statements of a body, and its variables."""

    choices: Choices
    callees: list[Cell]
    variables: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    names: int = 0

    def of_type(self, wanted: str) -> list[str]:
        return [name for name, kind in self.variables if kind == wanted]

    def pick(self, wanted: str) -> str:
        """A variable of a type, the newest first; something simple if there is none."""
        known = self.of_type(wanted)
        if known:
            return known[-1 - self.choices.below(len(known))]
        vectors = self.of_type("v")
        simple = {"v": 'p["b0"]', "s": 'p["scale"]', "m": 'p["w0"]', "i": "jnp.int32(2)", "b": "jnp.bool_(True)"}
        simple |= {
            "f": "jnp.ones(3, jnp.float32)",
            "k": "jax.random.key(1)",
            "z": "jnp.zeros(0)",
            "V": f"[{', '.join(vectors)}]",
        }
        return simple[wanted]

    def assign(self, kinds: str, expression: str) -> None:
        names = []
        for kind in kinds:
            self.names += 1
            names.append(f"{kind.lower()}{self.names}")
            self.variables.append((names[-1], kind))
        self.lines.append(f"{', '.join(names)} = {expression}")

    def add_statement(self) -> None:
        """One statement: an operation, a reduction of a list, or a call of another cell."""
        have = {kind for _, kind in self.variables}
        callable_cells = [cell for cell in self.callees if set(cell.reads) <= have]
        if callable_cells and self.choices.often(20):
            cell = self.choices.of(callable_cells)
            arguments = ", ".join(self.pick(kind) for kind in cell.reads)
            self.assign(cell.makes, f"{cell.name}(p, {arguments})")
            return
        if "V" in have and self.choices.often(40):
            self.assign("v", self.choices.of(REDUCTIONS).format(self.pick("V")))
            return
        fitting = [template for template in TEMPLATES if template.reads == "-" or set(template.reads) <= have]
        template = self.choices.of(fitting)
        reads = "" if template.reads == "-" else template.reads
        self.assign(template.makes, template.text.format(*map(self.pick, reads)))

    def result(self, kind: str) -> str:
        """An expression of a type that depends on something of that type."""
        if kind == "v" and not self.of_type("v") and self.of_type("V"):
            self.assign("v", self.choices.of(REDUCTIONS).format(self.pick("V")))
        if kind == "v" and self.choices.often(50):
            return f"jnp.tanh({self.pick('v')} + {self.pick('v')})"
        return self.pick(kind)


def indented(lines: Iterable[str], depth: int = 1) -> str:
    """Lines of a body, as text."""
    return "".join(f"{'    ' * depth}{line}\n" for line in lines)


DECORATORS = ("@jitbatch\n", "@jitbatch\n", "@jitbatch\n", "", "@jax.jit\n")


def make_cell(choices: Choices, name: str, reads: str, makes: str, callees: list[Cell]) -> Cell:
    """A random function of `p` and arguments of these types."""
    scope = Scope(choices, callees)
    arguments = []
    for position, kind in enumerate(reads):
        arguments.append("abcdef"[position])
        scope.variables.append((arguments[-1], kind))
    decorator = choices.of(DECORATORS)
    for _ in range(choices.of((0, 1, 2, 2, 3))):
        scope.add_statement()
    results = ", ".join([scope.result(kind) for kind in makes])
    source = f"{decorator}def {name}({', '.join(['p', *arguments])}):\n"
    source += indented([*scope.lines, f"return {results}"])
    return Cell(name, reads, makes, source)
