"""The executors, by the names that `jitbatch(executor=...)` accepts."""

from jitbatch.execute.dispatch import DISPATCH
from jitbatch.execute.executor import Executor
from jitbatch.execute.fused.executor import FUSED
from jitbatch.execute.per_sample import PER_SAMPLE

EXECUTORS: dict[str, Executor] = {executor.name: executor for executor in (FUSED, DISPATCH, PER_SAMPLE)}

FIRST = FUSED.name
"""`"auto"` begins with this executor: its programs run other batches too."""

GENERAL = DISPATCH.name
"""This executor runs what others cannot: effects, and samples inside any transformation."""

ONE_BY_ONE = PER_SAMPLE.name
"""This executor batches nothing. `"auto"` may choose it for samples that have nothing in common."""
