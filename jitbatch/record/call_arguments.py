"""Arguments of calls of decorated functions, while a sample is recorded: their leaves, the numbers of these, and the
forms that decide what a call does."""

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import jax

from jitbatch.ir.cell import Identity
from jitbatch.ir.tables import Tables
from jitbatch.record.mutation import changed_argument
from jitbatch.record.rows import Numbers
from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import SharedSource, Value, root
from jitbatch.util.array_leaves import described, is_array, plain_aval
from jitbatch.util.errors import ArgumentError
from jitbatch.util.key_order import flatten, flatten_in_order
from jitbatch.util.static import bits_key

MANY_LEAVES = 8
"""Arguments of more leaves are large: functions that call others run on them, without aliases, when they meet their
structure first, and each time if few of them come again."""


def weakly(fun: Callable[..., Any]) -> Hashable:
    """A function as a part of a key that keeps neither it nor what it closes over: one that is made for each sample is
    of no use after it. Other callables may be equal to one that is made later, if they can be compared at all."""
    if type(fun) is FunctionType:
        return weakref.ref(fun)
    return Identity(fun) if type(fun).__hash__ is None else fun


def code_of(fun: Callable[..., Any]) -> Hashable:
    """What functions have in common that are made anew for each sample."""
    return getattr(fun, "__code__", None) or weakly(fun)


class Flat(NamedTuple):
    """An argument taken apart: its leaves, their numbers (none if all of them are shared), and its form."""

    arg: Any
    leaves: Sequence[Any]
    rows: Sequence[int | None]
    form: int
    is_shared: bool = False


class Passed:
    """What was passed to calls, taken apart.

    Shared arguments are passed along from call to call, and flattening a module costs more than recording a call: what
    holds nothing but shared values is looked up by identity. So is what another call returned.

    Attributes:
        known: what is looked up, by `id`: what a `Flat` holds.
    """

    def __init__(self, tables: Tables, numbers: Numbers, sample: str, walks: Callable[[Callable[..., Any]], bool]):
        self.known: dict[int, tuple[Any, Sequence[Any], Sequence[int | None], int, bool]] = {}
        self._shared: list[Flat] = []
        self._tables = tables
        self._numbers = numbers
        self._sample = sample
        self._walks = walks

    def release(self) -> None:
        self.known.clear()
        self._shared.clear()

    def flatten(self, arg: Any, fun: Callable[..., Any] | None = None) -> Flat | None:
        """An argument's leaves, and its form. None if it is large, of a form that was not met before, and passed to a
        function that `walks` over such arguments (see `Known.walks`)."""
        found = self.known.get(id(arg))
        if found is not None:
            return Flat(*found)
        tables, numbers = self._tables, self._numbers
        if type(arg) is Value:
            form = numbers.form(arg)
            return Flat(arg, (arg,), (arg.row,), form)
        kind = type(arg)
        if (kind is list or kind is tuple) and arg and id(arg[0]) in self.known:
            items = [self.known.get(id(item)) for item in arg]
            if all(item is not None and not item[4] for item in items):
                leaves = [leaf for _, some, _, _, _ in items for leaf in some]  # type: ignore[misc]
                rows = [row for _, _, some, _, _ in items for row in some]  # type: ignore[misc]
                form = tables.form(kind, *[form for _, _, _, form, _ in items])  # type: ignore[misc]
                return Flat(arg, leaves, rows, form)
        elif kind is dict or isinstance(arg, tuple):
            flat = self._of_rows(arg, kind)
            if flat is not None:
                return flat
        leaves, tree, statics = flatten_in_order(arg)
        if set(map(type, leaves)) == {Value}:
            forms = tuple([numbers.form(leaf) if leaf.form is None else leaf.form for leaf in leaves])
            rows = [leaf.row for leaf in leaves]
        else:
            forms = tuple([numbers.form(leaf) if is_array(leaf) else (self._static_key(leaf),) for leaf in leaves])
            rows = [numbers.row(leaf) for leaf in leaves]
        are_shared = rows.count(None) == len(rows)
        description = "tree", tree, statics, forms
        is_large_and_new = len(leaves) > MANY_LEAVES and not are_shared and description not in tables.forms
        if fun is not None and is_large_and_new and self._walks(fun):
            return None
        form = tables.form(*description)
        if leaves and are_shared and all(map(_is_shared_leaf, leaves)):
            flat = self.known[id(arg)] = Flat(arg, leaves, (), form, True)
            self._shared.append(flat)
            return flat
        if None not in rows:
            self._know_rows(arg, kind, forms, form)
        return Flat(arg, leaves, rows, form)

    def _of_rows(self, arg: Any, kind: type) -> Flat | None:
        """A named tuple or a dict of rows that has a known form, without taking it apart."""
        tables = self._tables
        if kind is not dict:
            form = tables.tuple_forms.get((kind, *[item.form if type(item) is Value else None for item in arg]))
            return None if form is None else Flat(arg, arg, [item.row for item in arg], form)
        found = tables.dict_forms.get((*arg, *[item.form if type(item) is Value else None for item in arg.values()]))
        if found is None:
            return None
        form, keys = found
        leaves = [arg[key] for key in keys]
        return Flat(arg, leaves, [leaf.row for leaf in leaves], form)

    def _know_rows(self, arg: Any, kind: type, forms: Sequence[Hashable], form: int) -> None:
        """Remember the form of a named tuple or a dict, if it holds nothing but rows, which have these forms."""
        if kind is dict:
            if set(map(type, arg.values())) == {Value}:
                keys = sorted(arg)
                form_of = dict(zip(keys, forms, strict=True))
                self._tables.dict_forms[*arg, *map(form_of.__getitem__, arg)] = form, keys
        elif isinstance(arg, tuple) and is_named_tuple(kind, arg) and set(map(type, arg)) == {Value}:
            self._tables.tuple_forms[kind, *forms] = form

    def know_shared(self, arg: Any, tree: Any, leaves: Sequence[Value]) -> None:
        """Remember a shared argument, whose array leaves these are, before it is met. That it does not change is for
        the caller to see."""
        if type(arg) is not Value and len(leaves) == tree.num_leaves > 0:
            form = self._tables.form("tree", tree, (), tuple([leaf.form for leaf in leaves]))
            self.known[id(arg)] = Flat(arg, leaves, (), form, True)

    def check_unchanged(self) -> None:
        """Shared arguments that were looked up by identity must hold what they held at first."""
        for arg, leaves, *_ in self._shared:
            after = jax.tree.leaves(arg)
            if len(after) != len(leaves) or any(a is not b for a, b in zip(after, leaves, strict=True)):
                raise changed_argument(arg, leaves, self._sample)

    def opened(self, arg: Any, alias: Callable[[Any], Any]) -> tuple[Any, list[Any] | None]:
        """A copy of an argument, in which numbers and arrays that are no values of the recording are replaced, and its
        leaves; None for one that cannot change or is shared, which is not copied."""
        if type(arg) is Value or id(arg) in self.known:
            return arg, None
        leaves, tree = flatten(arg)
        if not set(map(type, leaves)) <= {Value}:
            leaves = list(map(alias, leaves))
        return tree.unflatten(leaves), leaves

    def first_call(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "FirstCall":
        """A call with arguments of forms that were not met before."""
        given = (*args, *kwargs.values())
        flat: list[Any] = [self.flatten(arg) for arg in given]
        parts = [flatten_in_order(arg) for arg in given]
        for one, (found, *_) in zip(flat, parts, strict=True):
            if one.is_shared and list(map(id, found)) != list(map(id, one.leaves)):
                raise changed_argument(one.arg, one.leaves, self._sample)
        described = tuple((tree, statics, tuple(map(self._leaf_key, leaves))) for leaves, tree, statics in parts)
        return FirstCall(
            (weakly(fun), len(args), tuple(kwargs), described), [leaves for leaves, *_ in parts],
            [tree for _, tree, _ in parts], flat, self._sample,
        )  # fmt: skip

    def _leaf_key(self, leaf: Any) -> Hashable:
        if type(leaf) is Value:
            return leaf.aval_number
        return self._tables.avals.number(plain_aval(leaf)) if is_array(leaf) else (self._static_key(leaf),)

    def _static_key(self, leaf: Any) -> Hashable:
        """What a leaf that is not an array is in a key."""
        try:
            key = bits_key(leaf)
            hash(key)
            return key
        except TypeError:
            raise ArgumentError(
                f"a decorated function was called on {described(leaf)} of type {type(leaf).__name__}, while "
                f"{self._sample} was recorded. Arguments of decorated functions are arrays, pytrees of arrays (lists, "
                "tuples, dictionaries, classes that are registered with JAX), and what can be hashed."
            ) from None


class FirstCall:
    """A call with arguments of forms that were not met before.

    Attributes:
        signature: the function and the structure of its arguments: what its body does depends on nothing else.
        leaves: the leaves of all arguments.
        rows: the numbers of those that are not shared.
        positions: of each leaf its place among these.
        is_shared: of each argument whether it holds nothing but shared values.
        arguments: what the body is called with (see `replace`).
        aliases: the leaves of that.
        has_all_aliases: whether there is an alias for every leaf.
    """

    def __init__(
        self, signature: Hashable, leaves: list[list[Any]], trees: list[Any], flat: list[Flat], sample: str
    ):  # fmt: skip
        places = itertools.count()
        self.signature = signature
        self.leaves = [leaf for one in leaves for leaf in one]
        self.rows = [row for one in flat for row in one.rows]
        self.positions = [None if one.is_shared else next(places) for one in flat for _ in one.leaves]
        self.is_shared = [one.is_shared for one in flat]
        self.arguments: list[Any] = []
        self.aliases: list[Any] = []
        self.has_all_aliases = False
        self._leaves = leaves
        self._trees = trees
        self._flat = flat
        self._sample = sample

    def replace(self, alias: Callable[[Any], Any], with_shared: bool) -> None:
        """Put an alias in the place of each leaf. Arguments that hold nothing but shared values are left as they are,
        unless these are asked for or one of them is given twice."""
        shared = [id(leaf) for flat in self._flat if flat.is_shared for leaf in flat.leaves]
        self.has_all_aliases = not shared or with_shared or len(set(shared)) < len(shared)
        for leaves, tree, flat in zip(self._leaves, self._trees, self._flat, strict=True):
            if flat.is_shared and not self.has_all_aliases:
                self.aliases += leaves
                self.arguments.append(flat.arg)
            else:
                replaced = list(map(alias, leaves))
                self.aliases += replaced
                self.arguments.append(tree.unflatten(replaced))

    @property
    def shared_aliases(self) -> set[int]:
        """The `id`s of the aliases of shared values."""
        shared = [arg for arg, is_shared in zip(self.arguments, self.is_shared, strict=True) if is_shared]
        return {id(leaf) for leaf in jax.tree.leaves(shared)}

    def check_unchanged(self) -> None:
        """A body must not have changed what it was called with."""
        aliases = iter(self.aliases)
        for passed, leaves, is_shared in zip(self.arguments, self._leaves, self.is_shared, strict=True):
            check_holds(passed, list(itertools.islice(aliases, len(leaves))), self._sample, is_shared)


def check_holds(arg: Any, leaves: list[Any], sample: str, is_shared: bool = False) -> None:
    """Raise if an argument of a body that has run does not hold these leaves any more: the caller would not see it."""
    after = jax.tree.leaves(arg)
    if list(map(id, after)) == list(map(id, leaves)):
        return
    if len(after) != len(leaves) or any(
        one is not other and (is_array(one) or is_array(other)) for one, other in zip(leaves, after, strict=True)
    ):
        raise changed_argument(arg, leaves, sample, is_shared)


def _is_shared_leaf(value: Any) -> bool:
    origin = root(value)
    return type(origin) is Value and type(origin.source) is SharedSource
