"""The file format of a saved plan: a zip with NumPy arrays, JSON texts and a checksum.

Members are not compressed, so no member is larger than the file. The SHA-256 checksum is the end of the zip's comment;
it is verified before anything else is read. The JSON text describes the arrays, and an array is made only if the file
has enough bytes for it. Each `.npy` member holds all arrays of one dtype, one after the other; `numpy.load` reads it.
"""

import hashlib
import io
import math
import os
import stat
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitbatch.ir.cell import key_bits
from jitbatch.plan.saved.values import check_shape, damaged, dtype_named, dumps, loads
from jitbatch.util import compat
from jitbatch.util.errors import PlanError

FORMAT = "jitbatch plan"
VERSION = 1

MAX_BYTES = 2**32
"""The largest size of a file."""

_SEAL = b"sha256:"
_DIGITS = 64
_TEXTS = ("plan.json", "static.json")
_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal plans make equal files


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Bytes


def pack(about: Any, static: bytes, arrays: Sequence[Any]) -> bytes:
    """Returns the bytes of a file.

    Args:
        about: JSON data about the arrays.
        static: the text of the static part.
        arrays: the arrays. Arrays of one dtype are stored one after the other.
    """
    described = []
    parts: dict[str, list[np.ndarray]] = {}
    for array in arrays:
        words = key_bits(array) if compat.is_prng_key(array.dtype) else np.asarray(array)
        described.append([str(array.dtype), list(words.shape)])
        parts.setdefault(_stored(array.dtype).name, []).append(words.reshape(-1).view(_stored(array.dtype)))
    text = dumps({"format": FORMAT, "version": VERSION, "arrays": described, "about": about})
    contents = dict(zip(_TEXTS, (text.encode(), static), strict=True))
    contents |= {f"{name}.npy": _npy(np.concatenate(parts[name])) for name in sorted(parts)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = _SEAL + b"0" * _DIGITS
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    body = buffer.getvalue()[:-_DIGITS]
    return body + digest(body).encode()


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array.astype(array.dtype.newbyteorder("<")), (1, 0), allow_pickle=False)
    return buffer.getvalue()


def _stored(dtype: Any) -> np.dtype:
    """Returns the dtype in the file. Random keys, and dtypes that NumPy does not know, are stored as unsigned words."""
    if compat.is_prng_key(dtype):
        return np.dtype(np.uint32)
    return np.dtype(dtype) if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")


def unpack(content: bytes) -> tuple[Any, bytes, list[Any]]:
    """Returns the arguments of `pack` from its result. Raises `PlanError` for any other bytes."""
    if not content.startswith(b"PK") or not content[:-_DIGITS].endswith(_SEAL):
        raise PlanError(
            "this is not a plan that `plan.save` or pickle has written, or its end is missing: save the plan again"
        )
    if digest(content[:-_DIGITS]).encode() != content[-_DIGITS:]:
        raise PlanError("the saved plan is damaged: its checksum is that of other bytes. Save the plan again")
    try:
        return _unpack(content)
    except PlanError:
        raise
    except Exception as error:  # zipfile raises errors of many types
        damaged(f"{type(error).__name__}: {str(error)[:100]}")


def _unpack(content: bytes) -> tuple[Any, bytes, list[Any]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(
            member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size for member in members
        ):
            damaged("a member is compressed")
        if sum(member.file_size for member in members) > len(content):
            damaged("members are larger than the file")
        names = [member.filename for member in members]
        if tuple(names[: len(_TEXTS)]) != _TEXTS or len(set(names)) != len(names):
            damaged("its members are others")
        text, static, *contents = map(archive.read, members)
    data = loads(text)
    if not isinstance(data, dict) or data.keys() != {"format", "version", "arrays", "about"}:
        damaged("plan.json has other fields")
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        raise PlanError(
            f"the file is a {str(data['format'])[:40]!r} of version {str(data['version'])[:40]}, and this release of "
            f"jitbatch reads a {FORMAT!r} of version {VERSION}. Plan again"
        )
    return data["about"], static, _arrays(data["arrays"], dict(zip(names[len(_TEXTS) :], contents, strict=True)))


def _arrays(described: Any, contents: dict[str, bytes]) -> list[Any]:
    """Returns the described arrays from the members of the zip."""
    # An .npy begins with 10 bytes, of which the last two are the length of the header that follows.
    position = {name: 10 + int.from_bytes(content[8:10], "little") for name, content in contents.items()}
    arrays = []
    for entry in described if isinstance(described, list) else damaged("arrays are a list"):
        match entry:
            case [name, [*shape]]:
                check_shape(shape)
            case _:
                damaged("an array has a dtype and a shape")
        dtype = dtype_named(name)
        stored = _stored(dtype)
        member, count = f"{stored.name}.npy", math.prod(shape)
        begin, content = position.get(member, 0), contents.get(member, b"")
        if count * stored.itemsize > len(content) - begin:
            damaged(f"an array {name}{shape} is larger than what there is of it")
        words = np.frombuffer(content, stored.newbyteorder("<"), count, begin).astype(stored)
        arrays.append(_array_of(words, dtype, shape))
        position[member] = begin + count * stored.itemsize
    if position != {name: len(content) for name, content in contents.items()}:
        damaged("arrays that nothing is said of")
    return arrays


def _array_of(words: np.ndarray, dtype: Any, shape: Sequence[int]) -> Any:
    if compat.is_prng_key(dtype):
        return compat.keys_of(words.reshape(shape), dtype)
    if dtype.kind == "b" and words.view(np.uint8).max(initial=0) > 1:
        damaged("a truth value that is neither true nor false")
    return words.view(dtype).reshape(shape)


# Files


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file completely or not at all. An existing file is replaced when the new one is complete."""
    if len(content) > MAX_BYTES:
        raise PlanError(f"the plan takes {len(content)} bytes, and a file up to {MAX_BYTES}. Plan smaller minibatches")
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a file. Raises `PlanError` if it is not a regular file, or too large."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise PlanError(f"{os.fspath(path)} is not a saved plan: it is no file, or larger than {MAX_BYTES} bytes")
        return file.read(found.st_size)
