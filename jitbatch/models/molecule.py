"""The energy of a molecule, and the forces on its atoms: messages along bonds (Gilmer et al., 2017), with filters that
depend on distances (Schuett et al., 2017), a sum over atoms and a sum over pairs of atoms."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jitbatch import Samples, jitbatch
from jitbatch.data.molecules import Molecule

NEAREST, FURTHEST = 0.6, 3.0


class Interaction(nnx.Module):
    """A round of messages: an atom's state is changed by the states of its neighbours, weighed by filters of bonds."""

    def __init__(self, hidden: int, radial: int, *, rngs: nnx.Rngs):
        self.filter = nnx.Linear(radial, hidden, rngs=rngs)
        self.sender = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.receiver = nnx.Linear(2 * hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, hidden, rngs=rngs)

    @jitbatch
    def message(self, h: Array, distances: Array) -> Array:
        return self.sender(h) * self.filter(distances)

    @jitbatch
    def update(self, h: Array, received: Array) -> Array:
        return h + self.out(nnx.silu(self.receiver(jnp.concatenate([h, received]))))


class MoleculeEnergy(nnx.Module):
    """The energy is a sum over atoms, of a part for the element and a part for its surroundings, and over all pairs of
    atoms, of a part that depends on both and on their distance.

    >>> import numpy as np
    >>> from jitbatch import Static
    >>> positions = np.array([[0, 0, 0], [0, 0, 0.7]], np.float32)
    >>> hydrogen = Molecule(np.zeros(2, np.int32), positions, Static(((0, 1),)), 4.7)
    >>> model = MoleculeEnergy(elements=2, hidden=4, rngs=nnx.Rngs(0))
    >>> model.loss.batch([hydrogen]).shape
    (1,)
    """

    def __init__(self, elements: int, hidden: int = 64, rounds: int = 3, radial: int = 16, *, rngs: nnx.Rngs):
        self.hidden, self.radial = hidden, radial
        self.embed = nnx.Embed(elements, hidden, rngs=rngs)
        self.reference = nnx.Embed(elements, 1, embedding_init=nnx.initializers.zeros, rngs=rngs)
        self.interactions = nnx.List([Interaction(hidden, radial, rngs=rngs) for _ in range(rounds)])
        self.inner = nnx.Linear(hidden, hidden, rngs=rngs)
        self.readout = nnx.Linear(hidden, 1, kernel_init=nnx.initializers.zeros, rngs=rngs)
        self.pair_state = nnx.Linear(hidden, hidden, rngs=rngs)
        self.pair_filter = nnx.Linear(radial, hidden, rngs=rngs)
        self.pair_out = nnx.Linear(hidden, 1, use_bias=False, kernel_init=nnx.initializers.zeros, rngs=rngs)

    @jitbatch
    def state(self, species: Array) -> Array:
        """The first state of an atom."""
        return self.embed(species)

    @jitbatch
    def distances(self, here: Array, there: Array) -> Array:
        """How near the distance of two atoms is to each of some distances."""
        centres = jnp.linspace(NEAREST, FURTHEST, self.radial)
        distance = jnp.sqrt(jnp.sum((here - there) ** 2))
        return jnp.exp(-(((distance - centres) * self.radial / (FURTHEST - NEAREST)) ** 2))

    @jitbatch
    def atom(self, species: Array, h: Array) -> Array:
        """The part of one atom."""
        return (self.reference(species) + self.readout(nnx.silu(self.inner(h))))[0]

    @jitbatch
    def pair(self, distances: Array, h: Array, other: Array) -> Array:
        """The part of two atoms."""
        both = self.pair_state(h) * self.pair_state(other)
        return self.pair_out(both * self.pair_filter(distances))[0]

    @jitbatch
    def energy(self, molecule: Molecule) -> Array:
        """The atomization energy. Its gradient with respect to positions is the force on each atom."""
        at = molecule.positions
        states = [self.state(species) for species in molecule.species]
        distances = {(i, j): self.distances(at[i], at[j]) for j in range(len(states)) for i in range(j)}
        for interaction in self.interactions:
            received: list[list[Array]] = [[] for _ in states]
            for i, j in molecule.bonds.value:
                received[i].append(interaction.message(states[j], distances[i, j]))
                received[j].append(interaction.message(states[i], distances[i, j]))
            sums = [sum(messages, jnp.zeros(self.hidden)) for messages in received]
            states = [interaction.update(h, total) for h, total in zip(states, sums, strict=True)]
        atoms = [self.atom(species, h) for species, h in zip(molecule.species, states, strict=True)]
        pairs = [self.pair(near, states[i], states[j]) for (i, j), near in distances.items()]
        return sum(atoms) + sum(pairs, jnp.zeros(()))

    @jitbatch
    def loss(self, molecule: Molecule) -> Array:
        """The squared error of the energy."""
        return (self.energy(molecule) - molecule.energy) ** 2

    @jitbatch
    def energy_and_loss(self, molecule: Molecule) -> tuple[Array, Array]:
        """The energy, and its squared error."""
        energy = self.energy(molecule)
        return energy, (energy - molecule.energy) ** 2


def losses_at_rest(model: MoleculeEnergy, molecules: Samples, weight: float) -> Array:
    """The loss of each of some molecules at rest: that of their energy, and forces, which are zero at rest.

    Args:
        model: the model.
        molecules: in the body of a step, `jitbatch.jit(samples="molecules", differentiable="positions")`.
        weight: the weight of the mean squared force in a molecule.
    """

    def total(molecules: Samples) -> tuple[Array, Array]:
        energies, losses = MoleculeEnergy.energy_and_loss.batch(model, molecules)
        return energies.sum(), losses

    forces, losses = jax.grad(total, has_aux=True)(molecules)
    squared, counts = jax.tree.map(jnp.square, forces).sums(), jax.tree.map(jnp.ones_like, molecules).sums()
    return losses + weight * squared / jnp.maximum(counts, 1)  # the place of a single atom is not read
