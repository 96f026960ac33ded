"""Small molecules: the G2/97 set (Curtiss et al., 1997), carried by the package `ase` (extra `molecules`)."""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitbatch.util.static import Static

ELECTRON_VOLTS = 0.0433641  # of a kilocalorie per mole
TOLERANCE = 1.3
"""Two atoms are bonded if their distance is at most this many times the sum of their covalent radii."""


class Molecule(NamedTuple):
    """A molecule: its atoms, its bonds and its atomization energy.

    Attributes:
        species: int32 [atoms]; the element of each atom, as an index into `Molecules.elements`.
        positions: float32 [atoms, 3]; in angstrom.
        bonds: pairs of atoms `(i, j)` with `i < j`, as `Static`.
        energy: the energy to pull the atoms of the resting molecule apart, in electron volts.
    """

    species: np.ndarray
    positions: np.ndarray
    bonds: Static
    energy: float


class Molecules(NamedTuple):
    """A set of molecules.

    Attributes:
        elements: the symbols of all elements in it.
        names: the formula of each molecule, as the set gives it.
        molecules: the molecules.
    """

    elements: tuple[str, ...]
    names: tuple[str, ...]
    molecules: list[Molecule]


def read_g2() -> Molecules:
    """The 148 molecules of the G2/97 set.

    Positions are MP2(full)/6-31G(d) geometries. The atomization energy is that of resting nuclei: experimental
    enthalpies of formation, without zero-point energies and thermal corrections, which are computed.

    Raises:
        ImportError: the package `ase` is not installed.
    """
    try:
        g2, symbols, data = (importlib.import_module(name) for name in ("ase.data.g2", "ase.symbols", "ase.data"))
    except ImportError as error:
        raise ImportError(
            f"the G2 set is in the package `ase`, which cannot be imported ({error}). Install the extra: "
            "pip install 'jitbatch[molecules]'"
        ) from None
    known: dict[str, Any] = g2.data
    formulas = {name: list(symbols.string2symbols(known[name]["symbols"])) for name in g2.molecule_names}
    elements = tuple(sorted(set().union(*formulas.values())))
    molecules = []
    for name, atoms in formulas.items():
        positions = np.array(known[name]["positions"], np.float32)
        radii = np.array([data.covalent_radii[data.atomic_numbers[atom]] for atom in atoms])
        parts = [known[atom]["enthalpy"] - known[atom]["thermal correction"] for atom in atoms]
        whole = known[name]["enthalpy"] - known[name]["ZPE"] - known[name]["thermal correction"]
        molecules.append(
            Molecule(
                np.array([elements.index(atom) for atom in atoms], np.int32),
                positions,
                Static(bonds_between(positions, radii)),
                ELECTRON_VOLTS * (sum(parts) - whole),
            )
        )
    return Molecules(elements, tuple(formulas), molecules)


def bonds_between(positions: np.ndarray, radii: Sequence[float] | np.ndarray) -> tuple[tuple[int, int], ...]:
    """The pairs of atoms that are near each other, in terms of their covalent radii.

    >>> bonds_between(np.array([[0.0, 0, 0], [0, 0, 1.1], [0, 0, 2.9]]), [0.7, 0.7, 0.4])
    ((0, 1),)
    """
    near = [
        (i, j)
        for j in range(len(positions))
        for i in range(j)
        if np.linalg.norm(positions[i] - positions[j]) <= TOLERANCE * (radii[i] + radii[j])
    ]
    return tuple(near)
