"""The errors a user can meet: one base class, each also the builtin a caller would catch."""

import sys


class JitbatchError(Exception):
    """Base class of every error that jitbatch raises itself."""


class ArgumentError(JitbatchError, TypeError):
    """An argument of `.batch` or `.plan` cannot be mapped or shared as asked."""


class SampleError(JitbatchError, TypeError):
    """A sample holds something that is neither an array nor static structure."""


class ControlFlowError(JitbatchError, TypeError):
    """Python control flow read a value that is known only when the batch runs."""


class NumberError(ControlFlowError, IndexError):
    """A number of a sample was indexed, iterated over or unpacked, as if it were a container."""


class MutationError(JitbatchError, RuntimeError):
    """An argument was changed in place while a sample was being recorded."""


class LeakError(JitbatchError, RuntimeError):
    """A value from a call of a decorated function was used after the call had ended."""


class QuestionError(JitbatchError, RuntimeError):
    """`jitbatch.value` is asked where it has no answer, or a sample awaits something else."""


class DecisionError(JitbatchError, ValueError):
    """Decisions do not fit the questions of a sample, or they are missing."""


class OutputError(JitbatchError, TypeError):
    """A result contains something other than arrays, or the results of the samples do not fit together."""


class SegmentError(JitbatchError, ValueError):
    """A list argument of a function of `jitbatch.segment` is empty, or its elements do not fit together."""


class PlanError(JitbatchError, ValueError):
    """A plan cannot be made, or it is used with arguments or samples that it was not made for."""


class Overloaded(JitbatchError, RuntimeError):
    """A request was refused, because `max_waiting` requests are waiting already. Try again later."""


class ServerClosed(JitbatchError, RuntimeError):
    """A request was not answered, because the server is closed."""


class CheckError(JitbatchError, AssertionError):
    """A batch differs from the plain loop by more than the tolerance: raised by `.check`."""


class CompileError(JitbatchError, AssertionError):
    """More was compiled than allowed: raised by `assert_max_compiles`."""


class VerifyError(JitbatchError, AssertionError):
    """An intermediate representation breaks one of its invariants: a bug in jitbatch."""


class ProcessError(JitbatchError, RuntimeError):
    """The processes of one program do not agree, or one of them has failed."""


class DataError(JitbatchError, ValueError):
    """A line of a data file does not follow its format."""


def mutation_error(what: str, sample: str, remedy: str | None = None) -> MutationError:
    hint = ""
    if "flax.nnx" in sys.modules:
        hint = (
            " (nnx.RNN and nnx.Bidirectional advance their random stream for the initial carry, also where that is "
            "zero: call them with `rngs=nnx.Rngs(0)`, or with an `initial_carry`.)"
        )
    return MutationError(
        f"{what} was changed in place while {sample} was recorded. "
        "A batched function is recorded once and run many times, so a change of state (Dropout's random stream, "
        "BatchNorm's running mean, an attribute or dictionary item that is set, a list that is emptied) would be lost. "
        + (
            remedy
            or "Dropout: pass a key of each sample as a mapped argument, and give it to the layer (rngs=key; "
            "jitbatch.Keys(key) for one a node). BatchNorm: its statistics are those of a batch, not of a sample: "
            "use LayerNorm, or normalise outside of the batched function with statistics that are computed there. Else "
            "return new state as an output, work on a copy of a list, or switch the module to evaluation mode."
        )
        + hint
    )
