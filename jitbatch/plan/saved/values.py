"""Python values as JSON: the values of `Static`, keys of dicts, and the fields of classes in pytrees.

Numbers, texts, containers and NumPy scalars are data. A class is saved as a name, which is looked up among the classes
that the program has already defined. Nothing is imported, and a file cannot name functions, so it cannot choose which
code runs. Other values raise an error in a file; a pickle stores them as separate objects.
"""

import enum
import json
import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType, NoneType
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from jitbatch.util import compat
from jitbatch.util.errors import PlanError

CHANGED = "the function, its shared arguments or the release of JAX differ from those it was saved with. Plan again"

MAX_ELEMENTS = 2**31
"""The largest number of elements of an array in a saved sample. The array is not allocated, but sizes depend on it."""

MAX_AXES = 32

_TYPES = {
    builtin.__name__: builtin
    for builtin in (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, NoneType, object)
}
_CONTAINERS: dict[str, Callable[..., Any]] = {"tuple": tuple, "list": list, "frozenset": frozenset}
_BITS = {"float": "<d", "complex": "<dd"}


def check_shape(shape: Sequence[Any]) -> None:
    """Raises `PlanError` if this is not the shape of an array, or is too large."""
    if len(shape) > MAX_AXES or not all(type(size) is int and size >= 0 for size in shape):
        damaged("the shape of an array")
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        damaged(f"an array of more than {MAX_ELEMENTS} elements")


def damaged(what: str) -> NoReturn:
    raise PlanError(f"the saved plan or capacity is damaged, or nobody saved it as it is: {what}")


# JSON


def dumps(data: Any) -> str:
    """Returns the canonical JSON text of data."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """Returns the data of a JSON text. Raises `PlanError` for duplicate keys, NaN, infinities, and malformed text."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        return found if len(found) == len(pairs) else damaged("a name occurs twice")

    def constant(name: str) -> NoReturn:
        damaged(f"{name} is not a number of JSON")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, PlanError):
            raise
        damaged(f"it is not JSON ({str(error)[:100]})")


# Names


def class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: Any) -> type:
    """Returns the class of this name, in a loaded module. It runs no code, also no `__getattr__` of modules or classes.

    Raises:
        PlanError: there is no such class.
    """
    module, _, qualified = str(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    if not isinstance(found, type) or class_name(found) != name:
        raise PlanError(
            f"what was saved has an instance of the class {name!r}, which this program has not defined. Import the "
            "module that defines it before the plan or capacity is used"
        )
    return found


def has_name(cls: type) -> bool:
    """Whether `find_class` finds a class by its name."""
    try:
        return find_class(class_name(cls)) is cls
    except PlanError:
        return False


def dtype_named(name: Any) -> Any:
    """Returns the dtype of this name. Raises `PlanError` if JAX arrays cannot have it."""
    try:
        found = compat.dtype_named(name) if isinstance(name, str) else None
    except (TypeError, ValueError, StopIteration):
        found = None
    if found is None or str(found) != name or not (compat.is_prng_key(found) or _is_numeric(found)):
        damaged(f"{str(name)[:40]!r} is no dtype of an array")
    return found


def _is_numeric(dtype: np.dtype) -> bool:
    """Whether JAX arrays can have a dtype. They cannot have NumPy's long floats, texts and objects."""
    return dtype == np.bool_ or (jnp.issubdtype(dtype, jnp.number) and hasattr(jnp, dtype.name))


# Encoding


def encode_value(value: Any, objects: list[Any] | None) -> Any:
    """Encodes a value as JSON data.

    None, booleans, integers and texts stay as they are. Any other value is a list that begins with the name of its
    type.

    Args:
        value: the value.
        objects: a list that receives values that are not data; None to raise `NotData` for them.
    """
    cls = type(value)
    if value is None or cls in (bool, int, str):
        return value
    if cls in (float, complex):
        parts = (value.real, value.imag) if cls is complex else (value,)
        return [cls.__name__, struct.pack(_BITS[cls.__name__], *parts).hex()]
    if cls is bytes:
        return ["bytes", value.hex()]
    encoded = _encode_container(value, cls, objects) or _encode_named(value, cls, objects)
    if encoded is not None:
        return encoded
    if objects is None:
        raise NotData(value)
    objects.append(value)
    return ["object", len(objects) - 1]


class NotData(Exception):
    """Raised for a value that cannot be saved as data."""

    def __init__(self, value: Any):
        super().__init__(value)
        self.value = value


def _encode_container(value: Any, cls: type, objects: list[Any] | None) -> list[Any] | None:
    if cls in (tuple, list):
        return [cls.__name__, *(encode_value(item, objects) for item in value)]
    if cls is frozenset:
        return ["frozenset", *sorted((encode_value(item, objects) for item in value), key=dumps)]
    if cls is dict:
        return ["dict", *([encode_value(k, objects), encode_value(v, objects)] for k, v in value.items())]
    if isinstance(value, np.generic) and _is_numeric(value.dtype):
        return ["numpy", str(value.dtype), value.tobytes().hex()]
    if isinstance(value, np.dtype) and _is_numeric(value):
        return ["dtype", str(value)]
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    return None


def _encode_named(value: Any, cls: type, objects: list[Any] | None) -> list[Any] | None:
    """Encodes a member of an enumeration, a named tuple or a dataclass. Returns None for other values."""
    if isinstance(value, type) or not has_name(cls):
        return None
    if isinstance(value, enum.Enum):
        is_member = cls.__members__.get(value.name) is value
        return ["enum", class_name(cls), value.name] if is_member else None
    if is_named_tuple(cls):
        return ["named", class_name(cls), *(encode_value(item, objects) for item in value)]
    if is_dataclass(value) and getattr(value, "__dict__", {}).keys() <= {field.name for field in fields(value)}:
        contents = [encode_value(getattr(value, field.name), objects) for field in fields(value)]
        return ["dataclass", class_name(cls), *contents]
    return None


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


# Decoding


def decode_value(data: Any, objects: Sequence[Any]) -> Any:
    """Decodes a value. Instances are made without calling their classes."""
    if data is None or type(data) in (bool, int, str):
        return data
    if not isinstance(data, list) or not data or not isinstance(data[0], str):
        damaged("a value has no type")
    tag, *parts = data
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode_value(part, objects) for part in parts)
    if tag == "dict" and all(isinstance(part, list) and len(part) == 2 for part in parts):
        return {decode_value(key, objects): decode_value(value, objects) for key, value in parts}
    if tag in ("named", "dataclass") and parts:
        contents = [decode_value(part, objects) for part in parts[1:]]
        return _make_named(find_class(parts[0]), tag == "named", contents)
    decode = _DECODERS.get(tag)
    if decode is None:
        damaged(f"a value of type {tag[:100]!r}")
    return decode(objects, *parts)


def _make_named(cls: Any, is_tuple: bool, contents: list[Any]) -> Any:
    if is_tuple and is_named_tuple(cls) and len(contents) == len(cls._fields):
        return tuple.__new__(cls, contents)
    own_fields = None if is_tuple or not is_dataclass(cls) else fields(cls)
    if own_fields is None or len(contents) != len(own_fields):
        damaged("an instance has other fields than its class")
    return make_instance(cls, {field.name: content for field, content in zip(own_fields, contents, strict=True)})


def make_instance(cls: Any, contents: Mapping[str, Any]) -> Any:
    """Returns an instance with these attributes, without calling its class."""
    instance = object.__new__(cls)
    for name, content in contents.items():
        object.__setattr__(instance, name, content)
    return instance


def _from_bits(form: str, bits: Any) -> tuple[Any, ...]:
    return struct.unpack(form, bytes.fromhex(bits))


def _enum(_: Any, name: Any, member: Any) -> Any:
    cls = find_class(name)
    if not issubclass(cls, enum.Enum) or member not in cls.__members__:
        damaged(f"{name} has no such member")
    return cls.__members__[member]


def _numpy(_: Any, name: Any, bits: Any) -> Any:
    dtype = dtype_named(name)
    return np.frombuffer(bytes.fromhex(bits), dtype)[0] if not compat.is_prng_key(dtype) else damaged("a scalar")


_DECODERS: dict[str, Callable[..., Any]] = {
    "float": lambda _, bits: _from_bits("<d", bits)[0],
    "complex": lambda _, bits: complex(*_from_bits("<dd", bits)),
    "bytes": lambda _, digits: bytes.fromhex(digits),
    "numpy": _numpy,
    "dtype": lambda _, name: dtype_named(name),
    "type": lambda _, name: _TYPES[name],
    "enum": _enum,
    "object": lambda objects, index: objects[index],  # only in pickles
}
