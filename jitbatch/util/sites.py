"""The position of a recorded operation in the user's code.

Bare operations are grouped by the code that made them (see `record/grouping`), so each has a `Site`: the chain of user
frames from the operation outwards to the innermost activation of a recursive function, or to a decorated function.
"""

import contextlib
import dis
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jitbatch.util import compat
from jitbatch.util.caches import at_clearing, memoised

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OUTSIDE = tuple(_PACKAGE + name + os.sep for name in ("models", "data", "cli"))  # treated as user code
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
COMPREHENSIONS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
_NAME_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_NAME", "LOAD_CLOSURE"})
_LAYERS = tuple(f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("flax", "equinox", "haiku", "optax"))
_OPERATORS = frozenset({"BINARY_OP", "COMPARE_OP"})
_FIXED_LOADS = ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_NAME")


LIBRARY, USER, RECURSIVE = range(3)

_code_kinds: dict[int, tuple[CodeType, int]] = {}
"""The kind of each code object by its `id`, because its hash is slow. The entry keeps the object alive, so that no
other object gets its `id`."""
at_clearing(_code_kinds.clear)


def _code_kind(code: CodeType) -> int:
    """`LIBRARY`, `USER`, or `RECURSIVE` for user code that calls itself."""
    found = _code_kinds.get(id(code))
    if found is None:
        if len(_code_kinds) > 4096:
            _code_kinds.clear()
        kind = LIBRARY if is_library(code) else RECURSIVE if calls_itself(code) else USER
        found = _code_kinds[id(code)] = (code, kind)
    return found[1]


class Site(NamedTuple):
    """A position in a running program.

    Attributes:
        chain: user frames, innermost first, each with the index of its current instruction. The frames are kept as
            objects, because another frame may reuse the address of a dead one.
        ordinal: the index of the operation within one call into a library. So the operations inside
            `jax.nn.softmax(x)` have different sites, while the same call in the next iteration of a loop has the same
            sites again.
    """

    chain: tuple[tuple[FrameType, int], ...]
    ordinal: int

    @property
    def where(self) -> str:
        """The innermost line outside of network libraries, as `file:line`."""
        users = (caller for caller in self.chain if not compat.defined_in_network_library(caller[0].f_code.co_filename))
        frame, instruction = next(users, self.chain[0])  # the frame may have advanced or returned since
        return f"{frame.f_code.co_filename}:{_lines(frame.f_code).get(instruction)}"


_NOWHERE = Site((), 0)


@memoised(4096)
def is_library(code: CodeType) -> bool:
    """Whether code belongs to JAX, NumPy or jitbatch, and not to the user."""
    file = code.co_filename
    return compat.defined_in_jax(file) or (file.startswith(_PACKAGE) and not file.startswith(_OUTSIDE))


@memoised(4096)
def _lines(code: CodeType) -> dict[int, int]:
    """The line of each instruction."""
    return {at: line for start, end, line in code.co_lines() if line is not None for at in range(start, end, 2)}


def is_generator(code: CodeType) -> bool:
    """Whether the frames of a function may be suspended: it is a generator or a coroutine."""
    return bool(code.co_flags & _GENERATORS)


def is_comprehension(code: CodeType) -> bool:
    return code.co_name in COMPREHENSIONS


@memoised(4096)
def calls_itself(code: CodeType) -> bool:
    """Whether a function mentions its own name (or `self.name`), so that each activation is a unit of its own.

    The answer depends on the code alone. So a sample without recursion (a tree with one node) is grouped like the
    others. `record/grouping` finds the functions that recurse in other ways.
    """
    receiver = code.co_varnames[:1]
    codes = [code]
    while codes:
        inner = codes.pop()
        codes += [const for const in inner.co_consts if isinstance(const, CodeType)]
        before = None
        for instruction in dis.get_instructions(inner):
            if instruction.argval == code.co_name:
                if instruction.opname in _NAME_LOADS:
                    return True
                if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and before in receiver:
                    return True
            before = instruction.argval if instruction.opname in ("LOAD_FAST", "LOAD_DEREF") else None
    return False


@memoised(4096)
def _loops(code: CodeType) -> tuple[tuple[int, int], ...]:
    """The loops of a function: the first instruction of each, and the last jump back to it."""
    ends: dict[int, int] = {}
    for instruction in dis.get_instructions(code):
        target = instruction.argval if "JUMP" in instruction.opname else None
        if isinstance(target, int) and target <= instruction.offset:
            ends[target] = instruction.offset
    return tuple(ends.items())


@memoised(4096)
def _calls(code: CodeType) -> frozenset[int]:
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname.startswith(("CALL", "PRECALL")))


def is_call(site: Site) -> bool:
    """Whether the user's code at a site is a call, such as `sum(...)`, and not an operator."""
    return bool(site.chain) and site.chain[0][1] in _calls(site.chain[0][0].f_code)


_operators: dict[int, tuple[CodeType, frozenset[int]]] = {}
"""The offsets of `_computing_operators` by the `id` of the code object, which the entry keeps alive."""
at_clearing(_operators.clear)


def combines_computed(site: Site) -> bool:
    """Whether the user's code at a site is an operator on two computed operands.

    A number in the code, a global name or an attribute of `self` is not computed: it is the same whenever the operator
    runs. Operators inside libraries of layers do not count: they often combine a value with a fixed number, such as
    the epsilon of a normalisation.
    """
    if not site.chain:
        return False
    frame, instruction = site.chain[0]
    code = frame.f_code
    found = _operators.get(id(code))
    if found is None:
        if len(_operators) > 4096:
            _operators.clear()
        found = _operators[id(code)] = (code, frozenset(_computing_operators(code)))
    return instruction in found[1]


def _computing_operators(code: CodeType) -> Iterator[int]:
    """The offsets of the operators whose operands are both computed (see `combines_computed`)."""
    if _is_of_layers(code):
        return
    for instruction, is_fixed in _operators_of(code):
        if instruction.opname in _OPERATORS and not any(is_fixed):
            yield instruction.offset


def _operators_of(code: CodeType) -> Iterator[tuple[dis.Instruction, tuple[bool, bool]]]:
    """The operators and subscripts of a function, with whether the left and the right operand of each are fixed."""
    instructions = list(dis.get_instructions(code))

    def is_fixed(position: int) -> bool:
        """Whether the top of the stack before an instruction is a fixed value, loaded by the instruction before."""
        if position < 2 or instructions[position].is_jump_target:
            return False
        before, load = instructions[position - 2 : position]
        is_setting = load.opname == "LOAD_ATTR" and before.argval == "self"
        return is_setting or load.opname.startswith(_FIXED_LOADS)

    for position, instruction in enumerate(instructions):
        if instruction.opname in _OPERATORS or _is_subscript(instruction):
            begin, pushed = position, 0  # `begin` moves to the first instruction of the right operand
            while begin > 0 and pushed < 1:
                begin -= 1
                pushed += dis.stack_effect(instructions[begin].opcode, instructions[begin].arg, jump=False)
            yield instruction, (is_fixed(begin), is_fixed(position))


def _is_subscript(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or (instruction.opname, instruction.argrepr) == ("BINARY_OP", "[]")


def _is_of_layers(code: CodeType) -> bool:
    return any(folder in code.co_filename for folder in _LAYERS)


class _Operands(NamedTuple):
    """The offsets of operators and subscripts, by the operands that are fixed values."""

    fixed_left: frozenset[int]
    fixed_right: frozenset[int]
    computed_index: frozenset[int]


@memoised(4096)
def _operands(code: CodeType) -> _Operands:
    left: set[int] = set()
    right: set[int] = set()
    index: set[int] = set()
    offsets = [instruction.offset for instruction in dis.get_instructions(code)]
    for instruction, (is_left_fixed, is_right_fixed) in _operators_of(code):
        # A frame that runs a specialised instruction may be at the end of the inline cache, before the next one.
        end = next(offset for offset in offsets if offset > instruction.offset)
        running = range(instruction.offset, end)
        may_swap = instruction.opname == "COMPARE_OP"  # Python may call the operator of the right operand
        if is_left_fixed or (may_swap and is_right_fixed):
            left.update(running)
        if is_right_fixed or (may_swap and is_left_fixed):
            right.update(running)
        elif _is_subscript(instruction):
            index.update(running)
    return _Operands(frozenset(left), frozenset(right), frozenset(index))


def may_be_computed(site: Site, operand: int) -> bool:
    """Whether the user's code at a site may have computed the number that is this operand of the operation.

    A fixed operand of an operator is not, as in `2 * x` or `x[0]`. Nor are operands in libraries of layers.
    """
    if not site.chain:
        return False
    frame, instruction = site.chain[0]
    code = frame.f_code
    return not _is_of_layers(code) and (operand > 1 or instruction not in _operands(code)[operand])


def has_computed_index(site: Site) -> bool:
    """Whether the user's code at a site is a subscript, such as `x[i]`, with an index that is not a fixed value."""
    if not site.chain:
        return False
    frame, instruction = site.chain[0]
    return instruction in _operands(frame.f_code).computed_index


def loop_depth(site: Site) -> int:
    """The number of loops in the user's code around a site, over all frames of its chain."""
    return sum(begin <= at <= end for frame, at in site.chain for begin, end in _loops(frame.f_code))


class SiteRecorder:
    """Gives each recorded operation its `Site`.

    A chain of frames ends at the call of a sample's function (`outermost`) and at the call of a decorated function
    (`boundary`), because the operations of a function do not depend on its caller.
    """

    def __init__(self, outermost: CodeType, boundary: CodeType):
        self._outermost = outermost
        self._boundary = boundary
        self._callee: FrameType | None = None
        self._ordinal = 0
        self._last: tuple[FrameType | None, int, Site] = (None, 0, _NOWHERE)

    def forget(self) -> None:
        """Release the frames of the last operation."""
        self._callee = None
        self._last = (None, 0, _NOWHERE)

    def here(self, depth: int = 0) -> Site:
        """The site of the operation that is being recorded. The innermost `depth` callers are known library frames."""
        # While a frame runs, its callers stay at their instructions, so its chain is reused. Not so for a generator.
        last, instruction, known = self._last
        frame: FrameType | None = sys._getframe(depth + 1)
        if frame is last and frame.f_lasti == instruction:  # the operator runs again, in a new call
            self._callee = None
            return known
        callee: FrameType | None = sys._getframe(depth)
        while frame is not None and frame is not last and _code_kind(frame.f_code) == LIBRARY:
            callee, frame = frame, frame.f_back
        self._ordinal = self._ordinal + 1 if callee is self._callee else 0
        self._callee = callee
        if frame is not None and frame is last and frame.f_lasti == instruction:
            return Site(known.chain, self._ordinal) if self._ordinal else known
        innermost, chain = frame, []
        while frame is not None:
            code = frame.f_code
            if code is self._outermost or code is self._boundary:
                break
            kind = _code_kind(code)
            if kind != LIBRARY:
                chain.append((frame, frame.f_lasti))
                if kind == RECURSIVE:
                    break
            frame = frame.f_back
        known = Site(tuple(chain), 0)
        if innermost is not None and not is_generator(innermost.f_code):
            self._last = (innermost, innermost.f_lasti, known)
        return Site(known.chain, self._ordinal) if self._ordinal else known


_WRAPPERS = (functools.__file__, contextlib.__file__)
"""Files of wrappers that call user code."""


def users_stacklevel() -> int:
    """The `stacklevel` with which the caller's `warnings.warn` shows the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (is_library(frame.f_code) or frame.f_code.co_filename in _WRAPPERS):
        level, frame = level + 1, frame.f_back
    return level


def users_line() -> str:
    """The innermost running line of the user's code, as `file:line`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def describe_source(fun: Callable[..., Any]) -> tuple[str, str]:
    """The name of a function, and its `file:line`."""
    code = getattr(fun, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else "?"
    return getattr(fun, "__qualname__", repr(fun)), where


def describe_function(fun: Callable[..., Any]) -> str:
    name, where = describe_source(fun)
    return f"`{name}` ({where})"
