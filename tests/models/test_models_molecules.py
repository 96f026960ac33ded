"""Message passing over molecules: energies, their gradients, and forces are those of the plain loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from plain_loop import assert_batches_like_loop, through_samples_and_plan

from jitbatch import Static, jit
from jitbatch.data import Molecule
from jitbatch.models import MoleculeEnergy, losses_at_rest


def molecule(seed: int, species: list[int], bonds: list[tuple[int, int]]) -> Molecule:
    positions = np.random.default_rng(seed).normal(size=(len(species), 3)).astype(np.float32)
    return Molecule(np.array(species, np.int32), positions, Static(tuple(bonds)), float(len(bonds)))


SAMPLES = [
    molecule(0, [0, 1], [(0, 1)]),
    molecule(1, [1, 0, 0, 2], [(0, 1), (0, 2), (1, 3)]),
    molecule(2, [2], []),
]
MODEL = MoleculeEnergy(elements=3, hidden=5, rounds=2, radial=4, rngs=nnx.Rngs(0))
MODEL.readout.kernel[...] = MODEL.pair_out.kernel[...] = jnp.ones((5, 1)) / 3  # zero at first


@through_samples_and_plan
def test_loss(through: str) -> None:
    assert_batches_like_loop(MODEL, "loss", SAMPLES, through)


def test_any_number_of_atoms_and_bonds_is_the_same_few_types() -> None:
    plan = MODEL.energy.plan(SAMPLES, like=None)
    larger = molecule(3, [0] * 7, [(i, j) for j in range(7) for i in range(j)])
    assert MODEL.energy.plan([*SAMPLES, larger], like=None).summary.types == plan.summary.types


def test_forces() -> None:
    plan = MODEL.energy.plan(SAMPLES, differentiable="positions")
    gradient = jax.grad(lambda x: MODEL.energy.batch(plan.with_inputs(x)).sum())(plan.inputs)
    found = [one.positions for one in plan.unpack(gradient)]
    wanted = plain_forces(MODEL)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert all(np.abs(one.sum(axis=0)).max() < 1e-5 for one in found)  # no net force, as energies know distances alone


def test_losses_of_energies_and_forces() -> None:
    """And their gradient with respect to parameters: reverse mode over reverse mode."""
    graph, state = nnx.split(MODEL)

    @jit(samples="molecules", differentiable="positions")
    def batched(state: Any, molecules: Any) -> Any:
        return jax.value_and_grad(lambda state: losses_at_rest(nnx.merge(graph, state), molecules, 0.5).sum())(state)

    def looped(state: Any) -> Any:
        model = nnx.merge(graph, state)
        errors = [(type(model).energy.__wrapped__(model, sample) - sample.energy) ** 2 for sample in SAMPLES]
        return sum(errors) + 0.5 * sum(jnp.mean(force**2) for force in plain_forces(model))

    got, wanted = batched(state, SAMPLES), jax.jit(jax.value_and_grad(looped))(state)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-5)


def plain_forces(model: Any) -> list[Any]:
    def energy(positions: Any, sample: Molecule) -> Any:
        return type(model).energy.__wrapped__(model, sample._replace(positions=positions))

    return [jax.grad(energy)(sample.positions, sample) for sample in SAMPLES]
