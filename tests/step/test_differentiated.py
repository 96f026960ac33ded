"""Steps that differentiate inputs of samples: values, gradients and losses on gradients are those of the plain loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jitbatch
from jitbatch.util.errors import ArgumentError
from tests.zoo.compare import assert_same

PARAMS = {"w": jnp.array([[0.4, -0.3], [0.2, 0.7]]), "s": jnp.array([0.3, 0.8]), "k": jnp.float32(0.9)}


@jitbatch.jitbatch
def fold(params: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ params["w"] + x)


@jitbatch.jitbatch
def pair(params: Any, here: Any, there: Any, charge: Any) -> Any:
    return charge * params["k"] * jnp.exp(-jnp.sqrt(jnp.sum((here - there) ** 2) + 1e-3))


@jitbatch.jitbatch
def energy(params: Any, molecule: Any) -> Any:
    """Pairs of atoms outside of loops, and a recurrence over atoms. The wind has the row shape of positions."""
    places = list(molecule["positions"])
    pairs = [pair(params, here, there, molecule["charge"]) for i, here in enumerate(places) for there in places[:i]]
    h = molecule["wind"]
    for place in places:
        h = fold(params, h, place)
    return sum(pairs, jnp.float32(0)) + params["s"] @ h


def molecule(atoms: int, seed: int = 0) -> Any:
    rng = np.random.default_rng([atoms, seed])
    positions, wind = rng.normal(size=(atoms, 2)).astype("f"), rng.normal(size=2).astype("f")
    return {"positions": positions, "charge": np.float32(atoms), "wind": wind, "kind": atoms}


def force_of(molecule: Any) -> Any:
    return {**molecule, "positions": np.cos(molecule["positions"]).astype("f")}


def loss_of_one(params: Any, sample: Any, target: Any) -> Any:
    """What a person writes for one molecule: its energy, and its error of forces."""

    def run(positions: Any) -> Any:
        return energy.__wrapped__(params, {**sample, "positions": positions})

    value, slopes = jax.value_and_grad(run)(jnp.asarray(sample["positions"]))
    return value**2 + jnp.sum((slopes + target["positions"]) ** 2), slopes


def body(params: Any, molecules: Any, forces: Any) -> Any:
    def loss(params: Any) -> Any:
        def total(molecules: Any) -> Any:
            energies = energy.batch(params, molecules)
            return energies.sum(), energies

        slopes, energies = jax.grad(total, has_aux=True)(molecules)
        errors = jax.tree.map(lambda slope, force: (slope + force) ** 2, slopes, forces)
        losses = energies**2 + errors.sums()
        return jnp.vdot(losses, molecules.mask) / molecules.mask.sum(), slopes

    (value, slopes), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    return value, gradients, {"slopes": slopes}


def looped(params: Any, molecules: Any, forces: Any) -> Any:
    def loss(params: Any) -> Any:
        pairs = [loss_of_one(params, *both) for both in zip(molecules, forces, strict=True)]
        return sum(value for value, _ in pairs) / len(pairs), [slopes for _, slopes in pairs]

    (value, slopes), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    return value, gradients, slopes


def assert_same_step(step: Any, molecules: Any, forces: Any | None = None) -> None:
    forces = [force_of(one) for one in molecules] if forces is None else forces
    value, gradients, named = step(PARAMS, molecules, forces)
    wanted, wanted_gradients, slopes = looped(PARAMS, molecules, [force_of(one) for one in molecules])
    assert_same((value, gradients), (wanted, wanted_gradients), rtol=2e-4, atol=1e-5)
    found = named["slopes"]
    assert [set(one) for one in found] == [{"positions", "charge", "wind", "kind"}] * len(slopes)
    assert {one[name] for one in found for name in ("charge", "wind", "kind")} == {None}
    assert_same([one["positions"] for one in found], slopes, rtol=1e-4, atol=1e-5)


OPTIONS = {"samples": "molecules", "differentiable": "positions", "targets": "forces"}


def test_values_gradients_and_losses_on_gradients_are_those_of_the_plain_loop() -> None:
    """Minibatches of other shapes, with equal molecules, and one that needs more room; then padding by `pad`."""
    step = jitbatch.jit(body, pad=4, **OPTIONS)
    same = molecule(2)
    for molecules in (
        [same, molecule(4), molecule(1), same],
        [molecule(3), molecule(2), molecule(2, 1), molecule(1)],
        [molecule(3), molecule(2)],  # filled up by two more of the last
        [molecule(7), molecule(1), molecule(6)],
    ):
        assert_same_step(step, molecules)
    assert step.cache_info()["programs"].misses == 2
    again = jitbatch.jit(body, pad=4, **OPTIONS)
    again.capacity = jitbatch.StepCapacity.from_json(step.capacity.to_json())
    assert_same_step(again, [molecule(1), molecule(2)])
    assert again.capacity == step.capacity


def test_prefetch_to_a_device_with_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    step = jitbatch.jit(body, pad=2, **OPTIONS)
    some = [molecule(2), molecule(1)]
    item = {"molecules": some, "forces": [force_of(one) for one in some]}
    step(PARAMS, **item)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    (planned,) = step.prefetch([item], 0)
    monkeypatch.undo()
    assert_same_step(lambda params, _, __: step(params, **planned), some)


def test_prefetch_and_reports() -> None:
    step = jitbatch.jit(lambda params, molecules, forces: body(params, molecules, forces), **OPTIONS)
    minibatches = [[molecule(n), molecule(n + 1)] for n in (1, 2)]
    items = [{"molecules": some, "forces": [force_of(one) for one in some]} for some in minibatches]
    with step.prefetch(items) as planned:
        for some, item in zip(minibatches, planned, strict=True):
            assert_same_step(lambda params, _, __, item=item: step(params, **item), some)
    assert step.explain(PARAMS, minibatches[0], items[0]["forces"]).samples == 2
    shapes = step.eval_shape(PARAMS, minibatches[0], items[0]["forces"])
    assert shapes[0].shape == ()


def test_a_function_without_these_inputs_beside_one_with_them() -> None:
    charges = jitbatch.jitbatch(lambda params, molecule: params["k"] * molecule["charge"])

    @jitbatch.jit(samples="molecules", differentiable="positions")
    def step(params: Any, molecules: Any) -> Any:
        return jax.grad(lambda m: energy.batch(params, m).sum())(molecules), charges.batch(params, molecules)

    molecules = [molecule(2), molecule(1)]
    slopes, found = step(PARAMS, molecules)
    assert_same([one["positions"] for one in slopes], looped(PARAMS, molecules, molecules)[2], rtol=1e-4, atol=1e-5)
    assert_same(found, jnp.array([2, 1]) * 0.9, rtol=1e-6)


def test_errors() -> None:
    molecules = [molecule(2), molecule(1)]
    forces = [force_of(one) for one in molecules]
    with pytest.raises(ArgumentError, match="name these, too"):
        jitbatch.jit(body, differentiable="positions")
    with pytest.raises(ArgumentError, match="targets are values for differentiated inputs"):
        jitbatch.jit(body, samples="molecules", targets="forces")
    with pytest.raises(ArgumentError, match="not for steps on a mesh"):
        jitbatch.jit(body, mesh=jax.make_mesh((1,), ("data",)), **OPTIONS)
    with pytest.raises(ArgumentError, match="'place' names no array of floats in any sample"):
        jitbatch.jit(body, **{**OPTIONS, "differentiable": "place"})(PARAMS, molecules, forces)
    step = jitbatch.jit(body, **OPTIONS)
    with pytest.raises(ArgumentError, match="1 targets, but there are 2 samples"):
        step(PARAMS, molecules, forces[:1])
    twice = jitbatch.jitbatch(lambda params, molecule: jnp.sum(molecule["positions"][0]) * params["k"])
    both = jitbatch.jit(
        lambda params, molecules: energy.batch(params, molecules) + twice.batch(params, molecules),
        samples="molecules", differentiable="positions",
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="decorate one function that returns both results"):
        both(PARAMS, molecules)
    parts = jitbatch.jitbatch(lambda params, molecule: jnp.sum(molecule["positions"]) * molecule["positions"][0, 0])
    with pytest.raises(ArgumentError, match=r"sample 0: molecule\.positions is differentiated and read in two ways"):
        jitbatch.jit(lambda params, m: parts.batch(params, m), samples="m", differentiable="positions")(
            PARAMS, molecules
        )
    several = jitbatch.jitbatch(lambda params, positions, charge: jnp.sum(positions[0]) * charge)
    with pytest.raises(ArgumentError, match="pass them as one argument, a list of tuples"):
        jitbatch.jit(lambda params, a, b: several.batch(params, a, b), samples=("a", "b"), differentiable="positions")(
            PARAMS, [one["positions"] for one in molecules], [one["charge"] for one in molecules]
        )
    with pytest.raises(ArgumentError, match=r"by `jax\.tree\.map`"):
        jitbatch.jit(lambda params, m: m + 1, samples="m", differentiable="positions")(PARAMS, molecules)
