"""Sites: which frames belong to the user, which functions call themselves, and which places are the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jitbatch
from jitbatch.record import context as context_module
from jitbatch.record import recorder
from jitbatch.util.sites import Site, SiteRecorder, calls_itself, combines_computed, is_comprehension, is_library


def by_name(n: int) -> int:
    return by_name(n - 1) if n else 0


def in_a_comprehension(tree: Any) -> Any:
    return [in_a_comprehension(child) for child in tree]


def in_a_lambda(tree: Any) -> Any:
    return list(map(lambda child: in_a_lambda(child), tree))  # noqa: C417


def not_at_all(x: Any) -> Any:
    return jnp.sin(x)


def sin(x: Any) -> Any:
    return jnp.sin(x)


class Model:
    def through_self(self, tree: Any) -> Any:
        return [self.through_self(child) for child in tree] if tree else 0

    def through_this(this, tree: Any) -> Any:
        return this.through_this(tree[0]) if tree else 0

    def softmax(self, x: Any) -> Any:
        return jax.nn.softmax(x)

    def forward(self, part: Any, x: Any) -> Any:
        return part.forward(x)


def closure() -> Callable[..., Any]:
    def inner(tree: Any) -> Any:
        return inner(tree[0]) if tree else 0

    return inner


@pytest.mark.parametrize(
    ("fun", "recursive"),
    [
        (by_name, True),
        (in_a_comprehension, True),
        (in_a_lambda, True),
        (closure(), True),
        (Model.through_self, True),
        (Model.through_this, True),
        (not_at_all, False),
        (sin, False),
        (Model.softmax, False),
        (Model.forward, False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_functions_that_call_themselves_are_seen_from_their_code(fun: Any, recursive: bool) -> None:
    assert calls_itself(fun.__code__) is recursive


def test_frames_of_libraries_are_not_the_users() -> None:
    assert is_library(jnp.sin.__wrapped__.__code__)
    assert is_library(np.linalg.norm.__wrapped__.__code__)
    assert is_library(recorder.Recorder.call.__code__)
    assert not is_library(by_name.__code__)
    assert not is_library(os.path.join.__code__)


def test_a_users_module_beside_the_package_is_not_the_package() -> None:
    package = os.path.dirname(os.path.dirname(recorder.__file__))
    for path in (os.path.join(os.path.dirname(package), "recorder.py"), f"{package}_of_mine.py"):
        assert not is_library(compile("x = 1", path, "exec"))


def test_models_and_data_sets_of_the_package_count_as_the_users() -> None:
    package = os.path.dirname(os.path.dirname(recorder.__file__))

    def code_in(file: str) -> CodeType:  # no two are equal: equal code has one answer, whatever its file is
        return compile(f"x = {file!r}", os.path.join(package, file), "exec")

    for folder in ("models", "data", "cli"):
        assert not is_library(code_in(os.path.join(folder, "some.py")))
    for file in ("decorator.py", os.path.join("record", "recorder.py"), os.path.join("execute", "fused", "loop.py")):
        assert is_library(code_in(file))


def test_comprehensions_are_no_functions() -> None:
    codes = [const for const in in_a_comprehension.__code__.co_consts if isinstance(const, CodeType)]
    assert all(is_comprehension(code) for code in codes)
    assert not is_comprehension(by_name.__code__)


def sites(body: Callable[[Callable[[], Site]], Any]) -> list[Site]:
    """The sites of the calls that `body` makes of its argument."""
    found: list[Site] = []
    recorder = SiteRecorder(sites.__code__, sites.__code__)

    def here() -> Site:
        found.append(recorder.here())
        return found[-1]

    body(here)
    return found


def places(site: Site) -> list[str]:
    return [frame.f_code.co_name for frame, _ in site.chain]


def test_a_chain_goes_from_the_operation_to_the_samples_function() -> None:
    def helper(op: Any) -> None:
        op()

    def sample(op: Any) -> None:
        op()
        helper(op)

    direct, helped = sites(sample)
    assert places(direct) == ["here", "sample"]
    assert places(helped) == ["here", "helper", "sample"]
    assert direct.where.startswith(__file__)


def test_a_chain_ends_at_the_innermost_activation_of_a_recursive_function() -> None:
    def recurse(op: Any, n: int) -> None:
        op()
        if n:
            recurse(op, n - 1)

    outer, inner = sites(lambda op: recurse(op, 1))
    assert places(outer) == places(inner) == ["here", "recurse"]
    assert outer.chain[-1][0] is not inner.chain[-1][0]


def test_turns_of_a_loop_are_one_place_and_lines_are_not() -> None:
    def sample(op: Any) -> None:
        for _ in range(2):
            op()
        op()

    first, second, after = ([at for _, at in site.chain] for site in sites(sample))
    assert first == second != after


def test_operations_inside_one_call_of_a_library_are_numbered() -> None:
    @jitbatch.jitbatch(granularity="op")
    def sample(_: Any, x: Any) -> Any:
        for _turn in range(2):
            x = jax.nn.logsumexp(x) * x
        return x

    noted: list[Site] = []
    build = context_module.build

    def noting(recorder: Any, *args: Any) -> Any:
        noted.extend(op.site for op in recorder.ops)
        return build(recorder, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_module, "build", noting)
        sample.plan(None, [jnp.ones(3)])
    found = [(site.chain[0][1], site.ordinal) for site in noted]
    half = len(found) // 2
    assert half > 3
    assert found[:half] == found[half:]
    assert len(set(found[:half])) == half


def test_a_generator_is_where_its_caller_is() -> None:
    recorder = SiteRecorder(sites.__code__, sites.__code__)

    def generate() -> Any:
        while True:
            yield recorder.here()

    def one(generator: Any) -> Site:
        return next(generator)

    def other(generator: Any) -> Site:
        return next(generator)

    generator = generate()
    names = [[frame.f_code.co_name for frame, _ in take(generator).chain[:2]] for take in (one, other, one)]
    assert names == [["generate", "one"], ["generate", "other"], ["generate", "one"]]


def test_a_frame_that_goes_on_is_elsewhere() -> None:
    recorder = SiteRecorder(sites.__code__, sites.__code__)
    first, second = recorder.here(), recorder.here()
    turns = []
    for _ in range(2):
        turns.append(recorder.here())
    assert len({site.chain[0][1] for site in (first, second, turns[0])}) == 3
    assert turns[0].chain == turns[1].chain


class Noting:
    """Notes whether the operator that is applied to it combines what was computed."""

    def __init__(self) -> None:
        self.noted: list[bool] = []

    def _note(self, other: Any) -> Any:
        frame = sys._getframe(1)
        self.noted.append(combines_computed(Site(((frame, frame.f_lasti),), 0)))
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __lt__ = __gt__ = _note  # type: ignore


HALF = 0.5


class Scaled:
    scale = 0.5

    def __call__(self, x: Any, n: Any) -> None:
        x * self.scale
        self.scale * x
        x * n.real


@pytest.mark.parametrize(
    ("operate", "expected"),
    [
        (lambda x, n: x / n, [True]),
        (lambda x, n: n / x, [True]),
        (lambda x, n: x / len([n, n]), [True]),
        (lambda x, n: (n + 1) * [x][0], [True]),
        (lambda x, n: x < n, [True]),
        (lambda x, n: x * (n if n else 2.0), [True]),
        (lambda x, n: (n if n else 2.0) * x, [True]),
        (lambda x, n: x / 2.0, [False]),
        (lambda x, n: 2.0 * x, [False]),
        (lambda x, n: 2.0 * [x, n][0], [False]),
        (lambda x, n: 2.0 < x, [False]),  # noqa: SIM300
        (lambda x, n: HALF * x + HALF, [False, False]),
        (lambda x, n: sum([x, x]), [False, False]),
        (Scaled(), [False, False, True]),
    ],
)
def test_operators_combine_what_was_computed(operate: Any, expected: list[bool]) -> None:
    x = Noting()
    operate(x, 3)
    assert x.noted == expected


def test_numbers_of_layers_are_settings() -> None:
    code = nnx.LayerNorm.__call__.__code__
    assert not any(
        combines_computed(Site(((SimpleNamespace(f_code=code), at),), 0))  # type: ignore[arg-type]
        for at in range(len(code.co_code))
    )
