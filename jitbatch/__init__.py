"""jitbatch: `vmap` for samples that do not have the same shape."""

from jitbatch import errors as errors
from jitbatch import segment as segment
from jitbatch._version import __version__ as __version__
from jitbatch.decorator import jitbatch as jitbatch
from jitbatch.inspect.report import Report as Report
from jitbatch.methods.asynchronous import AsyncBatched as AsyncBatched
from jitbatch.methods.batched import Batched as Batched
from jitbatch.plan.capacity import Capacity as Capacity
from jitbatch.plan.compiles import RecompileWarning as RecompileWarning
from jitbatch.plan.compiles import assert_max_compiles as assert_max_compiles
from jitbatch.plan.plan import Plan as Plan
from jitbatch.plan.ragged import Ragged as Ragged
from jitbatch.plan.saved import export as _export  # noqa: F401  registers plans with jax.export
from jitbatch.record.decisions import Decisions as Decisions
from jitbatch.record.keys import Keys as Keys
from jitbatch.record.questions import run as run
from jitbatch.record.questions import value as value
from jitbatch.rollout.rollout import Rollout as Rollout
from jitbatch.serve.server import Server as Server
from jitbatch.serve.stats import ServerStats as ServerStats
from jitbatch.step.capacity import StepCapacity as StepCapacity
from jitbatch.step.jit import Jitted as Jitted
from jitbatch.step.jit import jit as jit
from jitbatch.step.samples import Samples as Samples
from jitbatch.util.caches import CacheInfo as CacheInfo
from jitbatch.util.caches import clear_caches as clear_caches
from jitbatch.util.errors import JitbatchError as JitbatchError
from jitbatch.util.errors import Overloaded as Overloaded
from jitbatch.util.errors import ServerClosed as ServerClosed
from jitbatch.util.malloc import keep_memory as keep_memory
from jitbatch.util.static import Static as Static

__all__ = [
    "AsyncBatched",
    "Batched",
    "CacheInfo",
    "Capacity",
    "Decisions",
    "JitbatchError",
    "Jitted",
    "Keys",
    "Overloaded",
    "Plan",
    "Ragged",
    "RecompileWarning",
    "Report",
    "Rollout",
    "Samples",
    "Server",
    "ServerClosed",
    "ServerStats",
    "Static",
    "StepCapacity",
    "assert_max_compiles",
    "clear_caches",
    "errors",
    "jit",
    "jitbatch",
    "keep_memory",
    "run",
    "segment",
    "value",
]
