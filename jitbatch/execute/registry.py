"""The executors, by the names that `jitbatch(executor=...)` accepts."""

from jitbatch.execute.dispatch import DISPATCH
from jitbatch.execute.executor import Executor
from jitbatch.execute.fused.executor import FUSED
from jitbatch.execute.per_sample import PER_SAMPLE

EXECUTORS: dict[str, Executor] = {executor.name: executor for executor in (FUSED, DISPATCH, PER_SAMPLE)}
