"""Decorated functions are copied and pickled as plain functions are."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import Model, several, step
from zoo import INPUT, normal, rnn_params

from jitbatch import jitbatch

PARAMS = rnn_params(jax.random.key(0))
ROWS = [normal(np.random.default_rng(0), length, INPUT) for length in (3, 1, 4)]


class Outer:
    class Inner:
        @jitbatch
        def scaled(self, x: Any) -> Any:
            return 2.0 * x

        @staticmethod
        @jitbatch
        def doubled(scale: Any, x: Any) -> Any:
            return scale * x * 2

        @classmethod
        @jitbatch
        def made(cls, x: Any) -> Any:
            return x * 3


def doubled(scale: Any, x: Any) -> Any:
    return scale * x


renamed = jitbatch(doubled)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("fun", [step, several, Model.run, Outer.Inner.scaled, Outer.Inner.doubled], ids=repr)
def test_a_function_is_itself(fun: Any, copied: Any) -> None:
    assert copied(fun) is fun
    assert copied({"fun": [fun]})["fun"][0] is fun


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol(protocol: int) -> None:
    for fun in (step, Outer.Inner.scaled):
        assert pickle.loads(pickle.dumps(fun, protocol)) is fun


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
def test_a_bound_method_goes_with_its_object(copied: Any) -> None:
    model = Model(PARAMS, jnp.float32(0.5))
    again = copied(model.run)
    assert (again._instance is model) == (copied is copy.copy)
    expected = jnp.stack([model.run(rows) for rows in ROWS])
    np.testing.assert_allclose(again.batch(ROWS), expected, rtol=1e-5)
    np.testing.assert_allclose(again(ROWS[0]), expected[0], rtol=1e-5)
    assert again._batched is Model.run


def test_a_class_method() -> None:
    again = pickled(Outer.Inner.made)
    assert again.batch([1.0, 2.0]).tolist() == [3.0, 6.0]


def test_in_other_processes() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(doubled, (2.0, 3.0)) == 6.0  # a plain function, for comparison
        assert float(pool.apply(Outer.Inner.doubled, (2.0, 3.0))) == 12.0


def test_functions_without_a_name_of_their_own_are_refused_with_the_reason() -> None:
    local = jitbatch(lambda scale, x: scale * x)
    for fun in (local, renamed, jitbatch(functools.partial(doubled, 2.0), in_axes=0)):
        with pytest.raises(pickle.PicklingError, match=r"by name, and `.*` is not it. Decorate at the top level"):
            pickle.dumps(fun)
        assert copy.deepcopy([fun])[0] is fun
