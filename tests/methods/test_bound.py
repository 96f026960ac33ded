"""Decorated methods: of objects, of classes, and static ones."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from jitbatch import CacheInfo, clear_caches, jitbatch


class Model:
    """A pytree with decorated methods."""

    def __init__(self, w: Any):
        self.w = w

    @jitbatch
    def score(self, x: Any, y: Any = 1.0) -> Any:
        """The score of one sample."""
        return self.w * x + y

    @jitbatch(in_axes=(None, 0))
    def weighted(self, weight: Any, x: Any) -> Any:
        return self.w * weight * x

    @jitbatch
    def total(self, tree: Any) -> Any:
        return sum(self.total(t) for t in tree) if isinstance(tree, tuple) else self.score(tree)

    @staticmethod
    @jitbatch
    def product(w: Any, x: Any) -> Any:
        return w * x

    @staticmethod
    @jitbatch(in_axes=(0, None))
    def swapped(x: Any, w: Any) -> Any:
        return w * x


jax.tree_util.register_pytree_node(Model, lambda m: ((m.w,), None), lambda _, leaves: Model(*leaves))


def test_methods_are_bound() -> None:
    model = Model(jnp.float32(3))
    assert model.score(2.0) == 7.0
    assert Model.score(model, 2.0) == 7.0
    assert model.score.batch([1.0, 2.0]).tolist() == [4.0, 7.0]
    assert Model.score.batch(model, [1.0, 2.0]).tolist() == [4.0, 7.0]
    assert model.score.batch([1.0], y=[5.0]).tolist() == [8.0]
    assert model.total.batch([1.0, (1.0, (2.0, 3.0))]).tolist() == [4.0, 21.0]


def test_bound_methods_keep_what_methods_are() -> None:
    model = Model(jnp.float32(3))
    assert str(inspect.signature(model.score)) == "(x: 'Any', y: 'Any' = 1.0) -> 'Any'"
    assert (model.score.__name__, model.score.__doc__) == ("score", "The score of one sample.")
    assert (model.score.__qualname__, model.score.__module__) == ("Model.score", __name__)
    assert not hasattr(model.score, "nothing")
    assert copy.copy(model.score)(2.0) == model.score(2.0)
    assert model.score.__wrapped__.__self__ is model
    assert Model.score.__wrapped__(model, 2.0) == 7.0
    assert repr(model.score) == repr(Model.score)


def test_the_receiver_has_no_entry_in_in_axes() -> None:
    model = Model(jnp.float32(3))
    assert model.weighted.batch(2.0, [1.0, 2.0]).tolist() == [6.0, 12.0]
    assert Model.weighted.batch(model, 2.0, [1.0, 2.0]).tolist() == [6.0, 12.0]


def test_methods_are_planned() -> None:
    model = Model(jnp.float32(3))
    plan = model.score.plan([1.0, 2.0])
    assert model.score.batch(plan).tolist() == [4.0, 7.0]
    assert Model(jnp.float32(0)).score.batch(plan).tolist() == [1.0, 1.0]
    assert Model.score.batch(model, plan).tolist() == [4.0, 7.0]


def test_methods_of_all_objects_have_one_cache() -> None:
    clear_caches()
    for w in (1.0, 2.0):
        Model(jnp.float32(w)).score.batch([1.0, 2.0])
    assert Model.score.cache_info()["structures"] == CacheInfo(hits=3, misses=1, maxsize=16384, currsize=1)
    assert Model(1.0).score.cache_info() == Model.score.cache_info()


def test_static_methods() -> None:
    model = Model(jnp.float32(3))
    for owner in (Model, model):
        assert owner.product(2.0, 3.0) == 6.0
        assert owner.product.batch(2.0, [1.0, 2.0]).tolist() == [2.0, 4.0]
        assert owner.swapped.batch([1.0, 2.0], 3.0).tolist() == [3.0, 6.0]


def test_a_subclass_inherits_and_overrides() -> None:
    class Doubled(Model):
        @jitbatch
        def score(self, x: Any, y: Any = 1.0) -> Any:
            return 2 * Model.score(self, x, y)

    jax.tree_util.register_pytree_node(Doubled, lambda m: ((m.w,), None), lambda _, leaves: Doubled(*leaves))
    model = Doubled(jnp.float32(3))
    assert model.score.batch([1.0, 2.0]).tolist() == [8.0, 14.0]
    assert model.total.batch([(1.0, 2.0)]).tolist() == [22.0]


def test_a_function_that_is_also_a_class_attribute_stays_a_function() -> None:
    @jitbatch(in_axes=(0, None))
    def swapped(x: Any, w: Any) -> Any:
        return w * x

    class Holder:
        attribute = swapped

    assert Holder.attribute is swapped
    assert swapped.batch([1.0, 2.0], 3.0).tolist() == [3.0, 6.0]


def test_class_methods_and_static_methods() -> None:
    class Model:
        factor = 3.0

        @classmethod
        @jitbatch
        def scaled(cls, x: Any) -> Any:
            return cls.factor * x

        @staticmethod
        @jitbatch
        def product(p: Any, x: Any) -> Any:
            return p * x

    class Other(Model):
        factor = 5.0

    assert (Model.scaled(2.0), Other().scaled(2.0), Model.product(2.0, 3.0)) == (6.0, 10.0, 6.0)
    assert Model.scaled.batch([1.0, 2.0]).tolist() == [3, 6]
    assert Other.scaled.batch([1.0, 2.0]).tolist() == [5, 10]
    assert Model().product.batch(2.0, [1.0, 2.0]).tolist() == [2, 4]
