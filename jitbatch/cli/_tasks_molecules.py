"""The task of molecules: the energies of the G2 set."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jitbatch.cli import _baselines
from jitbatch.cli._errors import CommandError, require
from jitbatch.cli._memory import make_model
from jitbatch.cli._metrics import mean_absolute_error, mean_squared_error
from jitbatch.cli._settings import Settings
from jitbatch.cli._splits import limited
from jitbatch.cli._task import Task
from jitbatch.data import read_g2
from jitbatch.models import MoleculeEnergy, losses_at_rest


def molecules(settings: Settings) -> Task:
    require(["ase"], "molecules")
    if settings.forces and settings.executor == "loop":
        raise CommandError("forces are of minibatches: leave --executor loop, or --forces, out")
    elements, _, found = read_g2()
    order = np.random.default_rng(settings.seed).permutation(len(found))
    parts = np.split(order, [96, 118])
    train, dev, test = (limited([found[position] for position in part], settings) for part in parts)
    by_element = _baselines.composition(train, len(elements))
    model = make_model(lambda: MoleculeEnergy(len(elements), settings.hidden, rngs=nnx.Rngs(settings.seed)), settings)
    model.reference.embedding[...] = jnp.asarray(by_element, jnp.float32)[:, None]  # training begins at composition

    def energies(samples: Sequence[Any]) -> list[float]:
        return [sample.energy for sample in samples]

    def metrics(predictions: Sequence[Any], samples: Sequence[Any]) -> dict[str, float]:
        return {
            "negative mae (eV)": -mean_absolute_error(predictions, energies(samples)),
            "rmse (eV)": mean_squared_error(predictions, energies(samples)) ** 0.5,
        }

    def composed(samples: Sequence[Any]) -> list[float]:
        return [float(by_element[sample.species].sum()) for sample in samples]

    sizes = " / ".join(f"{len(samples):,}" for samples in (train, dev, test))
    return Task(
        description=f"molecules: {sizes} molecules of the G2 set, {len(elements)} elements; atomization energies in eV",
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=MoleculeEnergy.loss,
        differentiable="positions" if settings.forces else None,
        losses=partial(losses_at_rest, weight=settings.forces) if settings.forces else None,
        predict=MoleculeEnergy.energy,
        metrics=metrics,
        baselines={
            "composition: an energy for each element": lambda: metrics(composed(test), test)["negative mae (eV)"],
            "the mean energy": lambda: metrics([float(np.mean(energies(train)))] * len(test), test)[
                "negative mae (eV)"
            ],
        },
    )
