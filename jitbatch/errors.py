"""Every error and warning of jitbatch, in one place to import from.

Each error is a `JitbatchError`. It is also the builtin exception that code without jitbatch would catch: a `PlanError`
is a `ValueError`, a `ProcessError` is a `RuntimeError`.
"""

from jitbatch.core.choice import SlowPlanningWarning
from jitbatch.plan.compiles import RecompileWarning
from jitbatch.record.compiled_calls import SlowRecordingWarning
from jitbatch.step.channel import LateError
from jitbatch.util.errors import (
    ArgumentError,
    CheckError,
    CompileError,
    ControlFlowError,
    DataError,
    DecisionError,
    JitbatchError,
    LeakError,
    MutationError,
    NumberError,
    OutputError,
    Overloaded,
    PlanError,
    ProcessError,
    QuestionError,
    SampleError,
    SegmentError,
    ServerClosed,
    VerifyError,
)

__all__ = [
    "ArgumentError",
    "CheckError",
    "CompileError",
    "ControlFlowError",
    "DataError",
    "DecisionError",
    "JitbatchError",
    "LateError",
    "LeakError",
    "MutationError",
    "NumberError",
    "OutputError",
    "Overloaded",
    "PlanError",
    "ProcessError",
    "QuestionError",
    "RecompileWarning",
    "SampleError",
    "SegmentError",
    "ServerClosed",
    "SlowPlanningWarning",
    "SlowRecordingWarning",
    "VerifyError",
]
