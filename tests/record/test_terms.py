"""Turns: what makes one term of a sum is no part of what all terms have in common."""

from typing import Any

import jax.numpy as jnp
from test_reductions import assert_batches, kinds_of, vectors


def test_terms_are_apart_from_what_they_have_in_common() -> None:
    def fun(p: Any, xs: Any) -> Any:
        common = jnp.tanh(xs[0] @ p["w"])
        return sum(jnp.sin(common * x) for x in xs)

    assert_batches(fun)
    one, many = kinds_of(fun, vectors(2)), kinds_of(fun, vectors(5))
    assert one == many
    assert len(one) == 3  # what is common, a term, and the sum


def test_one_term_is_as_one_of_many() -> None:
    def fun(p: Any, xs: Any) -> Any:
        common = jnp.tanh(xs[0] @ p["w"])
        return sum([jnp.sin(common * x) for x in xs], jnp.zeros(2))

    assert kinds_of(fun, vectors(1)) == kinds_of(fun, vectors(4))
