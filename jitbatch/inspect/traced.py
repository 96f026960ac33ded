"""A warning for samples that are arguments of a `jax.jit` function: it is compiled again for each structure."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jitbatch.plan.compiles import RecompileWarning
from jitbatch.record.arguments import Part
from jitbatch.util import compat
from jitbatch.util.sites import users_stacklevel


class TracedSamples:
    """Warns once per function if `.batch` gets samples of several structures inside `jax.jit`."""

    def __init__(self) -> None:
        self._known: Any = None
        self._has_warned = False

    def note(self, parts: Sequence[Part], function: str) -> None:
        """Notes the mapped arguments of a call of `.batch`, except arrays: `jax.jit` handles arrays of samples well."""
        samples = [part.value for part in parts if not isinstance(part.value, np.ndarray | jax.Array)]
        leaves, tree = jax.tree.flatten(samples)
        if self._has_warned or not any(map(compat.is_of_jit, leaves)):
            return
        if self._known is None:
            self._known = tree
        elif tree != self._known:
            self._has_warned = True
            warnings.warn(
                f"jitbatch: {function} is called by `.batch` inside jax.jit, on samples that are arguments of the "
                "jitted function. They have other structures than before, and it is compiled anew for each. Use "
                "`jitbatch.jit` in place of `jax.jit`: it plans the samples outside. Or do that yourself: "
                "`plan = f.plan(params, samples)` outside, `f.batch(params, plan)` inside",
                RecompileWarning,
                stacklevel=users_stacklevel(),
            )
