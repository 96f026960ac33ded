"""What is measured: models with their parameters and samples, the same in every process that makes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import models
import numpy as np
from flax import nnx
from trees import random_pairs, random_sentences

from jitbatch import Batched, Static
from jitbatch.data import (
    Molecule,
    Pair,
    Sentence,
    Spelled,
    Tagged,
    Vocabulary,
    make_listops,
    make_toy_language,
    read_sick,
    read_sst,
    tagged,
)
from jitbatch.models import CharacterTagger, ListOpsTreeLSTM, MoleculeEnergy

ELEMENTS = 14
NEEDS_DATA = ("SICK", "SST")
"""Without data, the trees of these are random."""


class Workload(NamedTuple):
    """A loss of one sample, and samples.

    Attributes:
        name: as in `WORKLOADS`.
        source: where the samples are from.
        model: `model.batch(params, samples)` is a loss for each sample.
        params: a pytree of arrays.
    """

    name: str
    source: str
    model: Batched[..., Any]
    params: Any
    samples: list[Any]


def _sick(data: Path | None, number: int, hidden: int, rng: np.random.Generator) -> Workload:
    words = Vocabulary()
    pairs = random_pairs(rng, number) if data is None else read_sick(data / "sick" / "train", words)
    params = models.pair_params(hidden, max(len(words), 1000))
    return Workload("SICK", _source(data), models.pair_loss, params, _some(pairs, number, rng))


def _sst(data: Path | None, number: int, hidden: int, rng: np.random.Generator) -> Workload:
    words = Vocabulary()
    sentences = random_sentences(rng, number) if data is None else read_sst(data / "sst" / "train.txt", words)
    params = models.binary_params(hidden, max(len(words), 1000))
    return Workload("SST", _source(data), models.all_loss, params, _some(sentences, number, rng))


def _listops(data: Path | None, number: int, hidden: int, rng: np.random.Generator) -> Workload:
    (samples,) = make_listops(0, [number], depth=5)
    params = ListOpsTreeLSTM(hidden, rngs=nnx.Rngs(0))
    return Workload("ListOps", "made from a seed", ListOpsTreeLSTM.loss, params, samples)


def _tagger(data: Path | None, number: int, hidden: int, rng: np.random.Generator) -> Workload:
    words, tags, characters = Vocabulary(), Vocabulary(), Vocabulary()
    (sentences,) = make_toy_language(0, [number])
    samples = tagged(sentences, words, tags, characters)
    sizes = {"embedding": hidden, "hidden": hidden, "character_embedding": 32, "character_hidden": 32}
    params = CharacterTagger(len(words), len(characters), len(tags), **sizes, rngs=nnx.Rngs(0))
    return Workload("tagger", "made from a seed", CharacterTagger.loss, params, samples)


def _molecules(data: Path | None, number: int, hidden: int, rng: np.random.Generator) -> Workload:
    params = MoleculeEnergy(ELEMENTS, hidden, rngs=nnx.Rngs(0))
    # Both readouts are zero at first, so that training begins at the energies of elements. Here all parts have work.
    for readout in (params.readout, params.pair_out):
        readout.kernel[...] = rng.normal(size=(hidden, 1)).astype(np.float32) / hidden
    samples = [random_molecule(rng) for _ in range(number)]
    return Workload("molecules", "made from a seed", MoleculeEnergy.loss, params, samples)


def random_molecule(rng: np.random.Generator) -> Molecule:
    """2 to 14 atoms, each but the first bonded to one before it at the distance of a bond."""
    atoms = int(rng.integers(2, 15))
    bonds = [(int(rng.integers(atom)), atom) for atom in range(1, atoms)]
    positions = np.zeros((atoms, 3))
    for here, atom in bonds:
        way = rng.normal(size=3)
        positions[atom] = positions[here] + rng.uniform(1.0, 1.6) * way / np.linalg.norm(way)
    species = rng.integers(ELEMENTS, size=atoms).astype(np.int32)
    return Molecule(species, positions.astype(np.float32), Static(tuple(bonds)), float(rng.normal()))


def _source(data: Path | None) -> str:
    return "random trees" if data is None else "training set"


def _some(samples: list[Any], number: int, rng: np.random.Generator) -> list[Any]:
    return [samples[i] for i in rng.permutation(len(samples))[:number]]


_MAKERS: dict[str, Callable[[Path | None, int, int, np.random.Generator], Workload]] = {
    "SICK": _sick,
    "SST": _sst,
    "ListOps": _listops,
    "tagger": _tagger,
    "molecules": _molecules,
}
WORKLOADS = tuple(_MAKERS)


def make_workload(name: str, data: Path | None, number: int, hidden: int) -> Workload:
    """A workload of so many samples (of real data, at most as many as there are); `data` holds `sick` and `sst`."""
    return _MAKERS[name](data, number, hidden, np.random.default_rng(0))


# --- For other frameworks


def weights(params: Any) -> dict[str, np.ndarray]:
    """The parameters by name."""
    named = jax.tree.leaves_with_path(params)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value"): np.asarray(leaf)
        for path, leaf in named
    }


def as_json(sample: Any) -> Any:
    """A sample as lists and numbers: a pair is its two trees (each a token and a list of trees) and its target, a
    molecule its species, positions, bonds and energy; all others are what stands in their tuples."""
    if isinstance(sample, Molecule):
        return [sample.species.tolist(), sample.positions.tolist(), sample.bonds.value, sample.energy]
    if isinstance(sample, Pair):
        return [_dependency(sample.left), _dependency(sample.right), sample.target.tolist()]
    if isinstance(sample, Sentence):
        return [sample.tree, sample.labels.tolist()]
    if isinstance(sample, Tagged):
        words: list[Spelled] = sample.words
        return [[[word.word, word.characters.tolist()] for word in words], sample.tags.tolist()]
    return list(sample)


def _dependency(tree: Any) -> Any:
    return [tree.token, [_dependency(child) for child in tree.children]]
