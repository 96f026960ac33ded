"""Numbers that are data, in the recording of an asynchronous sample.

Such a sample gets answers as Python numbers, and may use them, and what it computes from them, as words to look up or
as factors. If they were constants, each answer would have cells of its own, and a program could never be known. So the
numbers and small NumPy arrays that reach decorated functions, indices and operations are rows, like inputs. Fixed
numbers in the code of the sample are constants where operators and subscripts use them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jitbatch.record.rows import SMALL
from jitbatch.record.values import ConstantRow, Value
from jitbatch.util.array_leaves import is_array, plain_aval
from jitbatch.util.key_order import flatten_in_order
from jitbatch.util.sites import Site, has_computed_index, may_be_computed

if TYPE_CHECKING:
    from jitbatch.record.recorder import Recorder


def is_data(leaf: Any) -> bool:
    """Whether a leaf is a number or a small NumPy array."""
    return not isinstance(leaf, jax.Array) and is_array(leaf) and np.size(leaf) <= SMALL


class DataNumbers:
    """Makes rows of numbers.

    Args:
        recorder: the recording.
    """

    def __init__(self, recorder: "Recorder"):
        self._recorder = recorder

    def row(self, number: Any) -> Value:
        """A number or NumPy array as a row."""
        aval = plain_aval(number)
        return self._recorder.value(aval, ConstantRow(np.array(number, aval.dtype), aval))

    def in_operation(self, inputs: Sequence[Any], site: Site) -> Sequence[Any]:
        """The operands of an operation, with rows in place of computed numbers. Operations on numbers only are left
        unchanged."""
        if self._recorder.scope or not any(type(operand) is Value for operand in inputs):
            return inputs
        return [
            self.row(operand) if is_data(operand) and may_be_computed(site, place) else operand
            for place, operand in enumerate(inputs)
        ]

    def in_index(self, index: np.ndarray, site: Site) -> Any:
        """The index of a subscript that is an array, as a row if it is computed and small, and of integers."""
        if self._recorder.scope or index.dtype.kind not in "iu" or not is_data(index) or not has_computed_index(site):
            return index
        return self.row(index)

    def in_call(self, arg: Any) -> Any:
        """An argument of a decorated call, with rows in place of numbers."""
        if type(arg) is Value or id(arg) in self._recorder.arguments.known:
            return arg
        leaves, tree, _ = flatten_in_order(arg)
        if not any(map(is_data, leaves)):
            return arg
        return tree.unflatten([self.row(leaf) if is_data(leaf) else leaf for leaf in leaves])
