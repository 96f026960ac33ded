"""Damaged and made-up files: `python -m fuzz.files --count 10000 --seed 1`.

Each trial takes a file of a plan, its pickle, or the text of its capacity, and damages it (its end is missing, bits are
flipped), or makes another one up, with the right checksum: other sizes, other parts of the JSON, JSON that is deep,
other arrays, other bytes of the zip. A damaged file is refused, or gives the same results. A made-up one may be a right
plan for something else; it is refused by a `PlanError`, or runs. Made-up samples are small or absurd: for those between
these, the function itself takes long.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import io
import json
import os
import pickle
import random
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fuzz import QUICK_COMPILATION

os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

import numpy as np
from saved import Case, cases
from zoo import assert_bits

from jitbatch import Capacity, Plan
from jitbatch.plan.saved import plans as saved_plans
from jitbatch.plan.saved.file import digest, pack, unpack
from jitbatch.plan.saved.values import dumps
from jitbatch.util.errors import PlanError

NAMES = (
    "static in a dict", "fused", "static loops", "sums", "keys", "ragged", "dispatch", "list", "short floats",
    "dataclasses", "named tuples", "axes",
)  # fmt: skip
SECONDS = 120
"""How long a trial may take: a made-up plan may be compiled anew."""


class Subject(NamedTuple):
    """A case, what is saved of it, and its results."""

    case: Case
    file: bytes
    pickled: bytes
    text: str | None
    want: Any


@functools.cache
def subjects() -> list[Subject]:
    made = []
    for name in NAMES:
        case = cases()[name]
        plan = case.plan()
        text = plan.capacity.to_json() if plan.static.executor == "fused" else None
        made.append(Subject(case, saved_plans.to_bytes(plan, None), pickle.dumps(plan), text, case.run(plan)))
    return made


# Damage


def damaged(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return content[: rng.randrange(len(content))]
    flipped = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


# Making up

NUMBERS = (-1, 0, 1, 2, 3, 2**20, 2**25, 2**26, 2**31, 2**40, 2**63, 10**30)
OTHERS: tuple[Any, ...] = (None, True, "", "x", 1.5, [], {}, [[]], -7, "builtins:eval", ["object", 0], ["dict"])


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """The containers in JSON, each with the place of one of its items."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for place, item in items:
        yield data, place
        yield from places(item)


def with_other_json(data: Any, rng: random.Random) -> Any:
    data = copy.deepcopy(data)
    found = list(places(data))
    inside = {id(part) for part, _ in places(next((part[place] for part, place in found if place == "exemplars"), []))}
    sizes = [(part, place) for part, place in found if type(part[place]) is int]
    kind = rng.choice(("number", "number", "number", "near", "other", "lost", "twice", "moved", "deep"))
    if kind in ("number", "near") and sizes:
        part, place = rng.choice(sizes)
        numbers = [n for n in NUMBERS if id(part) not in inside or not 2**20 <= n < 2**31]
        part[place] = rng.choice(numbers) if kind == "number" else part[place] + rng.choice((-1, 1, 2))
        return data
    part, place = rng.choice(found)
    if kind == "lost":
        del part[place]
    elif kind == "twice" and isinstance(part, list):
        part.insert(place, copy.deepcopy(part[place]))
    elif kind == "moved":
        other, there = rng.choice(found)
        part[place] = copy.deepcopy(other[there])
    elif kind == "deep":
        part[place] = functools.reduce(lambda inner, _: [inner], range(rng.choice((3, 50, 400))), 0)
    else:
        part[place] = rng.choice(OTHERS)
    return data


def with_other_arrays(arrays: list[Any], rng: random.Random) -> list[Any]:
    arrays = list(arrays)
    number = rng.randrange(len(arrays))
    array = arrays[number]
    if not isinstance(array, np.ndarray) or not array.size or rng.random() < 0.2:
        arrays[number] = rng.choice(arrays)
    elif rng.random() < 0.2:
        arrays[number] = array.reshape(-1)[: rng.randrange(array.size)]
    elif rng.random() < 0.2:
        arrays[number] = array.astype(rng.choice(("int64", "int8", "float32", "bool", "uint32")))
    else:
        arrays[number] = array.copy()
        value = rng.choice((-(2**31), -1, 0, 1, 2, 100, 2**31 - 1))
        arrays[number].reshape(-1)[rng.randrange(array.size)] = value if array.dtype == np.int32 else value > 0
    return arrays


def with_other_bytes(content: bytes, rng: random.Random) -> bytes:
    """Other bytes of the zip, most of them of its directory; or another member."""
    if rng.random() < 0.2:
        buffer = io.BytesIO(content)
        with zipfile.ZipFile(buffer, "a") as archive:
            name = rng.choice(("int16.npy", "../../etc/passwd", "x" * 1000, "PLAN.JSON"))
            archive.writestr(name, b"0" * rng.choice((0, 1, 1000)), rng.choice((0, 8)))
        body = bytearray(buffer.getvalue()[:-64])
    else:
        body = bytearray(content[:-64])
        for _ in range(rng.choice((1, 1, 4))):
            begin = len(body) - 400 if rng.random() < 0.7 else 0
            body[rng.randrange(begin, len(body))] = rng.randrange(256)
    return bytes(body) + digest(bytes(body)).encode()


def made_up(content: bytes, rng: random.Random) -> bytes:
    about, static, arrays = unpack(content)
    kind = rng.choice(("static", "static", "static", "about", "arrays", "bytes"))
    if kind == "bytes":
        return with_other_bytes(content, rng)
    if kind == "static":
        static = json.dumps(with_other_json(json.loads(static), rng)).encode()
    elif kind == "about":
        about = with_other_json(about, rng)
    else:
        arrays = with_other_arrays(arrays, rng)
    return pack(about, static, arrays)


def made_up_text(text: str, rng: random.Random) -> str:
    data = json.loads(text)
    if rng.random() < 0.1:
        return dumps(with_other_json(data, rng))
    content = with_other_json(data["capacity"], rng)
    return dumps(data | {"capacity": content, "sha256": digest(dumps(content).encode())})


# Trials


def trial(seed: int) -> str:
    """What one trial came to; an error where it is anything that it may not be."""
    rng = random.Random(seed)
    subject = rng.choice(subjects())
    kind = rng.choice(("file", "file", "pickle", "text", "made up", "made up", "made-up text"))
    if subject.text is None and "text" in kind:
        kind = "file"
    if kind == "pickle":
        return _pickled(subject, damaged(subject.pickled, rng))
    if kind == "file":
        content = damaged(subject.file, rng)
        return _judged(lambda: Plan(*saved_plans.from_bytes(content, None)), subject, kind, may_differ=False)
    if kind == "made up":
        content = made_up(subject.file, rng)
        return _judged(lambda: Plan(*saved_plans.from_bytes(content, None)), subject, kind, may_differ=True)
    assert subject.text is not None
    text = damaged(subject.text.encode(), rng) if kind == "text" else made_up_text(subject.text, rng)

    def planned() -> Plan:
        return subject.case.plan(like=Capacity.from_json(text))

    return _judged(planned, subject, kind, may_differ=True)


def _judged(make: Callable[[], Plan], subject: Subject, kind: str, may_differ: bool) -> str:
    try:
        plan = make()
    except PlanError:
        return f"{kind}: refused"
    try:
        got = subject.case.run(plan)
    except PlanError:
        return f"{kind}: refused when used"
    try:
        assert_bits(got, subject.want)
    except AssertionError:
        if not may_differ:
            raise
        return f"{kind}: another plan"
    return f"{kind}: equal"


def _pickled(subject: Subject, content: bytes) -> str:
    """Pickle itself may say anything of a damaged stream; but no other plan comes out of it."""
    try:
        plan = pickle.loads(content)
    except Exception as error:
        return f"pickle: refused by {'us' if isinstance(error, PlanError) else 'pickle'}"
    if not isinstance(plan, Plan):
        return "pickle: no plan"
    return _judged(lambda: plan, subject, "pickle", may_differ=False)


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"a trial took more than {SECONDS} seconds")


def run(count: int, seed: int, show: bool = False) -> dict[str, int]:
    """How many trials came to what."""
    found: collections.Counter[str] = collections.Counter()
    for number in range(count):
        try:
            found[trial(seed * 1_000_003 + number)] += 1
        except Exception as error:
            raise AssertionError(f"trial {number} of seed {seed} failed") from error
        if show and number % 100 == 99:
            print(f"\r{number + 1} of {count}", end="", flush=True)
            signal.alarm(SECONDS)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz.files", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many trials")
    parser.add_argument("--seed", type=int, default=0, help="which trials")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    for outcome, count in run(options.count, options.seed, show=True).items():
        print(f"\n{outcome}: {count}", end="")
    print()


if __name__ == "__main__":
    sys.exit(main())
