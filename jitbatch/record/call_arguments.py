"""Arguments of decorated calls: their leaves, the row ids of the leaves, and their forms. Forms are the keys of cached
calls.

Flattening a module costs more than recording a call. So two sorts of arguments are looked up by identity: arguments
with only shared values, which functions pass from call to call, and tuples that another call returned.
"""

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import jax

from jitbatch.ir.cell import Identity
from jitbatch.ir.tables import Tables
from jitbatch.record.mutation import changed_argument
from jitbatch.record.rows import Rows
from jitbatch.record.structure import is_named_tuple
from jitbatch.record.values import SharedSource, Value, root
from jitbatch.util import passes
from jitbatch.util.array_leaves import described, is_array, plain_aval
from jitbatch.util.errors import ArgumentError
from jitbatch.util.key_order import flatten_in_order
from jitbatch.util.static import bits_key


def weakly(fun: Callable[..., Any]) -> Hashable:
    """A key for a function that keeps neither the function nor its closure alive.

    A function that is created for each sample is garbage after the sample. Other callables are kept, because a later
    callable may be equal to them.
    """
    if type(fun) is FunctionType:
        return weakref.ref(fun)
    return Identity(fun) if type(fun).__hash__ is None else fun


class Flat(NamedTuple):
    """A flattened argument.

    Attributes:
        arg: the argument.
        leaves: its leaves.
        rows: the row id of each leaf, None for a shared leaf; empty if all leaves are shared.
        form: the id of its form, None if no cached call has this form.
        is_shared: whether all leaves are leaves of the shared arguments.
    """

    arg: Any
    leaves: Sequence[Any]
    rows: Sequence[int | None]
    form: int | None
    is_shared: bool = False


class CallArguments:
    """The arguments of the calls of one recording.

    Attributes:
        known: flattened arguments by `id`, as tuples of the fields of `Flat`.
        on_shared: a callback for each cached argument with only shared values, and its form.
    """

    def __init__(self, tables: Tables, rows: Rows, sample: str):
        self.known: dict[int, tuple[Any, Sequence[Any], Sequence[int | None], int | None, bool]] = {}
        self.on_shared: Callable[[Any, int], Any] | None = None
        self._shared: list[Flat] = []
        self._tables = tables
        self._rows = rows
        self._sample = sample
        self._remembers = passes.remembers()

    def release(self) -> None:
        self.on_shared = None
        self.known.clear()
        self._shared.clear()

    # Forms

    def describe(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], is_new: bool = False
    ) -> tuple[tuple[Hashable, ...], list[int | None]]:  # fmt: skip
        """The key of a call (the function `key` and the forms of its arguments), and the row ids of the arguments.

        Args:
            key: identifies the function.
            args, kwargs: its arguments.
            is_new: whether new forms get ids. Otherwise a new form is None.
        """
        forms: list[Any] = [key]
        rows: list[Any] = []
        known = self.known
        for arg in (*args, *kwargs.values()) if kwargs else args:
            if type(arg) is Value and arg.form is not None:
                forms.append(arg.form)
                rows.append(arg.row)
            else:
                _, _, of_leaves, form, _ = known.get(id(arg)) or self.flatten(arg, is_new)
                forms.append(form)
                rows += of_leaves
        if kwargs:
            forms.append((len(args), *kwargs))
        return tuple(forms), rows

    def flatten(self, arg: Any, is_new: bool = False) -> Flat:
        """The leaves and the form of an argument."""
        if type(arg) is Value:
            form = self._rows.form(arg)
            return Flat(arg, (arg,), (arg.row,), form)
        found = self.known.get(id(arg))
        if found is not None:
            return Flat(*found)
        kind = type(arg)
        flat = None
        if (kind is list or kind is tuple) and arg and id(arg[0]) in self.known:
            flat = self._sequence_of_known(arg, kind, is_new)
        elif kind is dict:
            flat = self._dict_of_rows(arg)
        elif isinstance(arg, tuple):
            flat = self._tuple_of_rows(arg, kind)
        return flat or self._any_tree(arg, is_new)

    def _form(self, description: Hashable, is_new: bool) -> int | None:
        """The id of a form, None for a new form unless `is_new`."""
        if is_new:
            return self._tables.form(*description)  # type: ignore[misc]
        form_id = self._tables.forms.find(description)
        return None if form_id is None else -1 - form_id

    def _sequence_of_known(self, arg: Any, kind: type, is_new: bool) -> Flat | None:
        """A list or tuple whose items are results of other calls. It is not flattened again."""
        items: list[Any] = [self.known.get(id(item)) for item in arg]
        if not all(item is not None and not item[4] for item in items):
            return None
        leaves = [leaf for _, of_item, _, _, _ in items for leaf in of_item]
        rows = [row for _, _, of_item, _, _ in items for row in of_item]
        return Flat(arg, leaves, rows, self._form((kind, *[form for _, _, _, form, _ in items]), is_new))

    def _tuple_of_rows(self, arg: Any, kind: type) -> Flat | None:
        """A named tuple of rows with a known form. It is not flattened again."""
        form = self._tables.tuple_forms.get((kind, *[item.form if type(item) is Value else None for item in arg]))
        return None if form is None else Flat(arg, arg, [item.row for item in arg], form)

    def _dict_of_rows(self, arg: dict[Any, Any]) -> Flat | None:
        """A dict of rows with a known form. It is not flattened again."""
        key = *arg, *[item.form if type(item) is Value else None for item in arg.values()]
        found = self._tables.dict_forms.get(key)
        if found is None:
            return None
        form, keys = found
        leaves = [arg[key] for key in keys]
        return Flat(arg, leaves, [leaf.row for leaf in leaves], form)

    def _any_tree(self, arg: Any, is_new: bool) -> Flat:
        leaves, tree, statics = flatten_in_order(arg)
        form_of = self._rows.form
        rows: list[int | None]
        if set(map(type, leaves)) == {Value}:
            forms = tuple([form_of(leaf) if leaf.form is None else leaf.form for leaf in leaves])
            rows = [leaf.row for leaf in leaves]
        else:
            forms = tuple([form_of(leaf) if is_array(leaf) else (self._static_key(leaf),) for leaf in leaves])
            rows = [self._rows.row(leaf) for leaf in leaves]
        is_shared = bool(leaves) and rows.count(None) == len(rows) and all(map(_is_shared_leaf, leaves))
        form = self._form(("tree", tree, statics, forms), is_new or is_shared)
        if is_shared:
            return self._remember_shared(Flat(arg, leaves, (), form, True))
        if form is not None and None not in rows:
            self._remember_rows(arg, type(arg), forms, form)
        return Flat(arg, leaves, rows, form)

    def _static_key(self, leaf: Any) -> Hashable:
        """The key of a leaf that is not an array."""
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

    # Caches

    def remember_shared_argument(self, arg: Any, tree: Any, leaves: Sequence[Value]) -> None:
        """Cache an argument of the sample's function that has these shared values as leaves. The caller checks that the
        argument does not change."""
        if self._remembers and type(arg) is not Value and len(leaves) == tree.num_leaves > 0:
            form = self._tables.form("tree", tree, (), tuple([leaf.form for leaf in leaves]))
            self._keep_shared(Flat(arg, leaves, (), form, True))

    def _remember_shared(self, flat: Flat) -> Flat:
        """Cache an argument with only shared values."""
        self._shared.append(flat)
        if self._remembers:
            self._keep_shared(flat)
        return flat

    def _keep_shared(self, flat: Flat) -> None:
        self.known[id(flat.arg)] = flat
        if self.on_shared is not None and flat.form is not None:
            self.on_shared(flat.arg, flat.form)

    def _remember_rows(self, arg: Any, kind: type, forms: Sequence[Hashable], form: int) -> None:
        """Cache the form of a named tuple or a dict with only rows; `forms` are the forms of the rows."""
        if not self._remembers:
            return
        if kind is dict:
            if set(map(type, arg.values())) == {Value}:
                keys = sorted(arg)
                form_of = dict(zip(keys, forms, strict=True))
                self._tables.dict_forms[*arg, *map(form_of.__getitem__, arg)] = form, keys
        elif isinstance(arg, tuple) and is_named_tuple(kind, arg) and set(map(type, arg)) == {Value}:
            self._tables.tuple_forms[kind, *forms] = form

    def check_unchanged(self) -> None:
        """Raise an error if a shared argument does not have its first leaves any more."""
        for arg, leaves, *_ in self._shared:
            after = jax.tree.leaves(arg)
            if len(after) != len(leaves) or any(a is not b for a, b in zip(after, leaves, strict=True)):
                raise changed_argument(arg, leaves, self._sample)

    # Signatures

    def take_apart(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "FlatCall":
        """The flattened arguments of a call, with the key of its body."""
        given = (*args, *kwargs.values())
        flat = [self.flatten(arg) for arg in given]
        parts = [flatten_in_order(arg) for arg in given]
        for argument, (leaves, *_) in zip(flat, parts, strict=True):
            if argument.is_shared and list(map(id, leaves)) != list(map(id, argument.leaves)):
                raise changed_argument(argument.arg, argument.leaves, self._sample)
        structure = tuple((tree, statics, tuple(map(self._leaf_key, leaves))) for leaves, tree, statics in parts)
        return FlatCall(
            (weakly(fun), len(args), tuple(kwargs), structure),
            list(given),
            [leaves for leaves, *_ in parts],
            [tree for _, tree, _ in parts],
            [argument.is_shared for argument in flat],
        )

    def _leaf_key(self, leaf: Any) -> Hashable:
        if type(leaf) is Value:
            return leaf.aval_id
        return self._tables.avals.number(plain_aval(leaf)) if is_array(leaf) else (self._static_key(leaf),)


class FlatCall(NamedTuple):
    """The flattened arguments of a call.

    Attributes:
        signature: the function and the structure of its arguments. The body depends on nothing else.
        arguments: the arguments.
        leaves_of: the leaves of each argument.
        trees: the tree of each argument.
        is_shared: for each argument, whether all of its leaves are shared values.
    """

    signature: Hashable
    arguments: list[Any]
    leaves_of: list[list[Any]]
    trees: list[Any]
    is_shared: list[bool]

    @property
    def leaves(self) -> list[Any]:
        """The leaves of all arguments."""
        return [leaf for leaves in self.leaves_of for leaf in leaves]

    @property
    def positions(self) -> list[int | None]:
        """For each leaf, its position among the leaves of arguments that are not shared."""
        places = itertools.count()
        return [
            None if is_shared else next(places)
            for leaves, is_shared in zip(self.leaves_of, self.is_shared, strict=True)
            for _ in leaves
        ]


def _is_shared_leaf(value: Any) -> bool:
    origin = root(value)
    return type(origin) is Value and type(origin.source) is SharedSource
