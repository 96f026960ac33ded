"""jitbatch: `vmap` for samples that do not have the same shape."""

from jitbatch import _export as _export  # registers plans with jax.export
from jitbatch._api import Batched as Batched
from jitbatch._api import jitbatch as jitbatch
from jitbatch._caches import CacheInfo as CacheInfo
from jitbatch._caches import clear_caches as clear_caches
from jitbatch._calibrate import calibrate as calibrate
from jitbatch._capacity import Capacity as Capacity
from jitbatch._compiles import RecompileWarning as RecompileWarning
from jitbatch._compiles import assert_max_compiles as assert_max_compiles
from jitbatch._errors import JitbatchError as JitbatchError
from jitbatch._jit import Jitted as Jitted
from jitbatch._jit import jit as jit
from jitbatch._keys import Keys as Keys
from jitbatch._malloc import keep_memory as keep_memory
from jitbatch._plan import Plan as Plan
from jitbatch._ragged import Ragged as Ragged
from jitbatch._report import Report as Report
from jitbatch._samples import Samples as Samples
from jitbatch._static import Static as Static
from jitbatch._step_capacity import StepCapacity as StepCapacity
from jitbatch._version import __version__ as __version__

__all__ = [
    "Batched",
    "CacheInfo",
    "Capacity",
    "JitbatchError",
    "Jitted",
    "Keys",
    "Plan",
    "Ragged",
    "RecompileWarning",
    "Report",
    "Samples",
    "Static",
    "StepCapacity",
    "assert_max_compiles",
    "calibrate",
    "clear_caches",
    "jit",
    "jitbatch",
    "keep_memory",
]
