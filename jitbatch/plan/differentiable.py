"""Differentiable inputs: from the names that a user gives, to rows of a plan, and back to the structure of the
samples."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jitbatch.ir.graph import Graph
from jitbatch.record.arguments import Arguments
from jitbatch.record.structure import described_leaves
from jitbatch.util import compat
from jitbatch.util.caches import Cache
from jitbatch.util.errors import ArgumentError, PlanError

Names = tuple[str, ...]
"""The names that a user gives: an argument, a key or attribute in a sample, or several of these joined by dots."""

_leaves = Cache(16384, first=1024)
_spans_known = Cache(16384, first=1024)


def names_of(differentiable: str | Sequence[str] | None) -> Names:
    """The option `differentiable` of a call as names, in order."""
    names = (differentiable,) if isinstance(differentiable, str) else differentiable or ()
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(f"differentiable={differentiable!r} is not the name of an input, or a sequence of names")
    return tuple(sorted(set(names)))


def differentiable_classes(graphs: Sequence[Graph], names: Names, call: Arguments) -> tuple[int, ...]:
    """The value classes of the named inputs of some graphs, ascending."""
    found: set[int] = set()
    for graph in set(graphs) if names else ():
        chosen = np.isin(graph.inputs[:, 0], sorted(leaves_named(graph, names, call)))
        found.update(graph.input_rows.of_input[0][chosen].tolist())
    return tuple(sorted(found))


def check_names(graphs: Sequence[Graph], names: Names, call: Arguments) -> None:
    """Raises `ArgumentError` for a name without an array of floats in any sample."""
    for name in names:
        if not any(leaves_named(graph, (name,), call) for graph in set(graphs)):
            paths = zip(_paths(graphs[0], call), described_leaves(graphs[0].structure), strict=True)
            told = ", ".join(f"{'.'.join(path)} ({_dtype(leaf)})" for path, leaf in list(paths)[:12])
            raise ArgumentError(
                f"differentiable={name!r} names no array of floats in any sample. The leaves of sample 0 are: "
                f"{told or 'none'}. Give the name of an argument, or of a key or attribute in a sample"
            )


def leaves_named(graph: Graph, names: Names, call: Arguments) -> frozenset[int]:
    """The float leaves of a sample whose path contains one of the names."""

    def find() -> frozenset[int]:
        wanted = [tuple(name.split(".")) for name in names]
        leaves = enumerate(zip(_paths(graph, call), described_leaves(graph.structure), strict=True))
        return frozenset(
            leaf
            for leaf, (path, described) in leaves
            if np.issubdtype(_dtype(described), np.floating) and any(_contains(path, part) for part in wanted)
        )

    return _leaves.get_or_make((graph, names), find)


def check_parts(graphs: Sequence[Graph], names: Names, call: Arguments) -> None:
    """Raises `ArgumentError` for a named input whose rows lie in several arrays, because its gradient would be in
    parts."""
    for number, graph in enumerate(graphs):
        leaves = [span.leaf for span in _spans(graph, names, call)]
        if len(set(leaves)) < len(leaves):
            leaf = next(leaf for leaf in leaves if leaves.count(leaf) > 1)
            raise ArgumentError(
                f"sample {number}: {'.'.join(_paths(graph, call)[leaf])} is differentiated and read in two ways, as a "
                "whole and row by row, so that its gradient would be in two parts. Read it in one way: "
                "`rows = list(x)` in place of `x`"
            )


def unpack(graphs: Sequence[Graph], names: Names, call: Arguments, rows: dict[int, Any]) -> Any:
    """Values of the rows of named inputs, in the structure of the samples.

    Args:
        graphs: of the samples.
        names: the names.
        call: the arguments of the plan.
        rows: for each value class of named inputs, an array with its rows.

    Returns:
        A list of samples, or a tuple of lists if several arguments are mapped. Inputs that are not named are None.
    """
    host = {class_id: np.asarray(values) for class_id, values in rows.items()}
    samples = []
    for graph, starts in zip(graphs, _starts(graphs), strict=True):
        named = leaves_named(graph, names, call)
        described = list(described_leaves(graph.structure))
        leaves: list[Any] = [None] * len(described)
        for leaf in named:
            leaves[leaf] = np.zeros(graph.leaf_shapes[leaf], jax.dtypes.canonicalize_dtype(_dtype(described[leaf])))
        for leaf, shape, index, class_id, row in _spans(graph, names, call):
            # A leaf may be read as a whole and row by row: both are added.
            leaves[leaf].reshape(shape)[index] += host[class_id][starts.get(class_id, 0) + row]
        samples.append(graph.structure[0].unflatten(leaves))
    parts = [list(part) for part in zip(*samples, strict=True)]
    return parts[0] if len(parts) == 1 else tuple(parts)


def pack(graphs: Sequence[Graph], names: Names, call: Arguments, values: Any, rows: dict[int, np.ndarray]) -> None:
    """Write values for the named inputs into rows: the inverse of `unpack`.

    Args:
        graphs, names, call: as for `unpack`.
        values: a list of samples, or a tuple of lists, with a value in place of each named input.
        rows: for each value class of named inputs, the array to write into.
    """
    parts = [values] if len(call.mapped) == 1 else list(values)
    if len(parts) != len(call.mapped) or any(part is not None and len(part) != len(graphs) for part in parts):
        raise PlanError(f"values to pack are like what plan.unpack returns: {len(call.mapped)} lists of {len(graphs)}")
    for number, (graph, starts) in enumerate(zip(graphs, _starts(graphs), strict=True)):
        sample = tuple(None if part is None else part[number] for part in parts)
        given = dict(_by_path(sample, call))
        for leaf, shape, index, class_id, row in _spans(graph, names, call):
            path = _paths(graph, call)[leaf]
            if path not in given or np.shape(given[path]) != graph.leaf_shapes[leaf]:
                was = np.shape(given[path]) if path in given else "missing"
                raise PlanError(
                    f"sample {number}: the value at {'.'.join(path)} has shape {graph.leaf_shapes[leaf]} in the plan, "
                    f"and is {was} here"
                )
            rows[class_id][starts.get(class_id, 0) + row] = np.asarray(given[path]).reshape(shape)[index]


def samples_of_rows(
    graphs: Sequence[Graph], names: Names, call: Arguments, sizes: Mapping[int, int]
) -> dict[int, np.ndarray]:
    """The sample that each row belongs to, or -1 for padding and for rows of inputs that are not named.

    Args:
        graphs, names, call: as for `unpack`.
        sizes: for each value class of named inputs, the number of its rows, with padding.

    Returns:
        For each of these value classes, int32 [rows].
    """
    found = {class_id: np.full(size, -1, np.int32) for class_id, size in sizes.items()}
    for number, (graph, starts) in enumerate(zip(graphs, _starts(graphs), strict=True)):
        for span in _spans(graph, names, call):
            found[span.class_id][starts.get(span.class_id, 0) + span.row] = number
    return found


def _starts(graphs: Sequence[Graph]) -> Iterator[dict[int, int]]:
    """For each sample, where its rows of each value class start."""
    total: dict[int, int] = {}
    for graph in graphs:
        yield dict(total)
        for class_id, count in graph.input_rows.counts.T.tolist():
            total[class_id] = total.get(class_id, 0) + count


class _Span(NamedTuple):
    """Inputs that are rows of one leaf: the leaf's shape as rows, the indices of the rows, their value class and their
    ids."""

    leaf: int
    shape: tuple[int, ...]
    positions: np.ndarray
    class_id: int
    row: np.ndarray


def _spans(graph: Graph, names: Names, call: Arguments) -> tuple[_Span, ...]:
    """The named inputs of a sample."""

    def find() -> tuple[_Span, ...]:
        found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        named = leaves_named(graph, names, call)
        for (leaf, depth, index), class_id, row in zip(
            graph.inputs.tolist(), *graph.input_rows.of_input.tolist(), strict=True
        ):
            if leaf in named:
                found.setdefault((leaf, depth, class_id), []).append((index, row))
        return tuple(
            _Span(leaf, (-1, *graph.leaf_shapes[leaf][depth:]), *(pairs[:, 0], class_id, pairs[:, 1]))
            for (leaf, depth, class_id), pairs in ((key, np.array(some)) for key, some in found.items())
        )

    return _spans_known.get_or_make((graph, names), find)


def _paths(graph: Graph, call: Arguments) -> list[tuple[str, ...]]:
    """The path of each leaf of a sample."""
    tree, _, numbers, _ = graph.structure
    found = {leaf: path for path, leaf in _by_path(tree.unflatten(range(len(numbers))), call)}
    return [found[leaf] for leaf in range(len(numbers))]


def _by_path(sample: tuple[Any, ...], call: Arguments) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(sample)[0]:
        part = call.mapped[path[0].idx]
        yield (part.name, *map(_key, path[1:])), leaf


def _key(entry: Any) -> str:
    return str(next(getattr(entry, name) for name in ("key", "name", "idx") if hasattr(entry, name)))


def _contains(path: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(path[start : start + len(part)] == part for start in range(len(path) - len(part) + 1))


def _dtype(described: Any) -> Any:
    """The dtype of a leaf, from its description by `describe_leaf`."""
    dtype = described[1] if isinstance(described, tuple) else np.result_type(described)
    return np.dtype(np.void) if compat.is_prng_key(dtype) else dtype
