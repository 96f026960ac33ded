"""Caches are bounded, counted, shared between threads, and cleared in one place."""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jitbatch
from jitbatch import CacheInfo, clear_caches
from jitbatch.util import compat, sites
from jitbatch.util.caches import Cache, _registry, memoised


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_hits_and_misses_are_counted() -> None:
    cache = Cache(2)
    cache.get("a")
    cache.put("a", 1)
    cache.get("a")
    cache.get("a")
    assert cache.info() == CacheInfo(hits=2, misses=1, maxsize=2, currsize=1)
    cache.clear()
    assert cache.info() == CacheInfo(hits=0, misses=0, maxsize=2, currsize=0)


def test_the_first_entry_of_a_key_stays() -> None:
    cache = Cache(2)
    assert cache.put("a", "first") == "first"
    assert cache.put("a", "second") == "first"
    assert cache.get_or_make("a", lambda: pytest.fail("there is an entry")) == "first"


def test_nothing_is_stored_when_making_fails() -> None:
    cache = Cache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("a", lambda: 1 / 0)
    assert cache.info().currsize == 0
    assert cache.get_or_make("a", lambda: "made") == "made"


def test_entries_can_be_discarded_and_listed() -> None:
    cache = Cache(3)
    for key in "abc":
        cache.put(key, key.upper())
    cache.discard("b")
    cache.discard("never there")
    assert list(cache) == ["A", "C"]


def test_a_list_of_entries_survives_changes() -> None:
    cache = Cache(3)
    cache.put("a", 1)
    for _ in cache:
        cache.put("b", 2)
    assert list(cache) == [1, 2]


def test_clear_caches_clears_every_cache() -> None:
    caches = [Cache(2), Cache(2)]
    for cache in caches:
        cache.put("a", 1)
    clear_caches()
    assert [cache.info().currsize for cache in caches] == [0, 0]


def test_what_comes_again_after_it_was_dropped_gets_more_room() -> None:
    cache = Cache(4, first=2)
    for key in "abcdefgh":
        assert cache.get(key) is None
        cache.put(key, key)
    assert cache.info()[2:] == (4, 2)
    assert cache.get("h") == "h"
    assert cache.get("a") is None  # too long ago
    cache.put("a", "a")
    assert cache.info().currsize == 2
    assert cache.get("g") is None
    for key in "gabc":
        cache.put(key, key)
    assert cache.info().currsize == 4
    cache.clear()
    for key in "abc":
        cache.put(key, key)
    assert cache.info().currsize == 2


def test_caches_are_made_while_all_are_cleared() -> None:
    """Without a lock, going through all of them fails when one is added meanwhile."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    stop = threading.Event()
    kept: list[Cache] = []

    def make() -> None:
        while not stop.is_set() and len(kept) < 100_000:
            kept.append(Cache(1))

    making = threading.Thread(target=make)
    making.start()
    try:
        for _ in range(30):
            clear_caches()
    finally:
        stop.set()
        making.join()
        sys.setswitchinterval(interval)


def test_the_registry_keeps_no_cache_alive() -> None:
    cache = Cache(2)
    known = len(_registry)
    assert cache in _registry
    del cache
    gc.collect()
    assert len(_registry) < known


def test_threads_that_make_an_entry_at_once_get_the_same_one() -> None:
    cache = Cache(2)
    barrier = threading.Barrier(8)
    got = []

    def make() -> object:
        barrier.wait()  # all of them have missed by now
        return object()

    threads = [threading.Thread(target=lambda: got.append(cache.get_or_make("a", make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len(set(map(id, got))) == 1


def test_memoised_functions_are_cleared() -> None:
    calls: list[int] = []

    @memoised(4)
    def double(x: int) -> int:
        calls.append(x)
        return 2 * x

    assert [double(1), double(1)] == [2, 2]
    clear_caches()
    assert double(1) == 2
    assert calls == [1, 1]


def test_what_is_known_of_code_is_cleared() -> None:
    code = test_what_is_known_of_code_is_cleared.__code__
    functions: list[Any] = [compat.defined_in_network_library, sites.is_library, sites.calls_itself, sites._lines]
    for fun, given in zip(functions, (code.co_filename, code, code, code), strict=True):
        fun(given)
    sites._code_kind(code)
    clear_caches()
    assert [fun.cache_info().currsize for fun in functions] == [0, 0, 0, 0]
    assert not sites._code_kinds
    assert not sites._operators


# --- No cache outside of the registry

PACKAGE = Path(jitbatch.__file__).parent
NO_CACHES = {
    "schedule/policies.py": {"POLICIES"},  # what is registered stays
    "plan/compiles.py": {"_watches"},  # of the blocks that run now
    "step/channel.py": {"_numbers", "_telling"},  # agreed on with other processes, and of the threads that run now
    "util/caches.py": {"_at_clearing"},  # the registry itself
}
CONTAINERS = {"dict", "list", "set", "OrderedDict", "defaultdict", "Counter", "deque"}
"""What makes a container. Weak ones are left out: their entries go with the objects that they are about."""
ADDING = {"add", "append", "appendleft", "extend", "insert", "setdefault", "update"}


def called(node: ast.expr | None) -> str:
    """The last name of what a call calls."""
    fun = node.func if isinstance(node, ast.Call) else None
    return fun.attr if isinstance(fun, ast.Attribute) else fun.id if isinstance(fun, ast.Name) else ""


def containers(tree: ast.Module) -> Iterator[str]:
    """The names of the containers at the top of a module."""
    for node in (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)):
        if isinstance(node.value, ast.Dict | ast.List | ast.Set) or called(node.value) in CONTAINERS:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def grown(tree: ast.Module) -> Iterator[str]:
    """The names that functions of a module add entries to."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield node.value.id
        if isinstance(node, ast.Attribute) and node.attr in ADDING and isinstance(node.value, ast.Name):
            yield node.value.id


def unregistered(source: str, no_caches: set[str]) -> list[str]:
    """The caches in a module's source that `clear_caches()` does not empty."""
    tree = ast.parse(source)
    cleared = {
        argument.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) == "at_clearing"
        for argument in node.args
        if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name)
    }
    found = sorted((set(containers(tree)) & set(grown(tree))) - cleared - no_caches)
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "functools":
            names = [node.attr]
        found += [name for name in names if name in ("lru_cache", "cache")]
    return found


def test_no_module_has_a_cache_outside_of_the_registry() -> None:
    """Use `Cache`, `memoised` or `at_clearing` of jitbatch/util/caches.py instead."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {
        name: unregistered(path.read_text(encoding="utf-8"), NO_CACHES.get(name, set())) for name, path in paths.items()
    }
    assert {name: caches for name, caches in found.items() if caches} == {"util/caches.py": ["lru_cache"]}


def test_caches_outside_of_the_registry_are_found() -> None:
    source = """
import functools
from functools import lru_cache
_seen: dict[int, int] = {}
_names = set()
_cleared = {}
at_clearing(_cleared.clear)
CONSTANT = {1: 2}
@functools.cache
def double(x):
    _names.add(x)
    _seen[x] = _cleared[x] = CONSTANT[1] * x
    own = {}
    own[x] = x
"""
    assert unregistered(source, {"_names"}) == ["_seen", "lru_cache", "cache"]
