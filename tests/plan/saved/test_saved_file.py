"""Files of plans and texts of capacities: data alone, the same bits again, and a clear error for anything else."""

from __future__ import annotations

import collections
import enum
import functools
import io
import json
import os
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from saved import cases, chain
from zoo import INPUT, Params, assert_bits, normal, rnn_params

from jitbatch import Capacity, Plan, Static, jitbatch
from jitbatch.plan.saved import plans as saved_plans
from jitbatch.plan.saved.file import digest, pack, unpack
from jitbatch.plan.saved.trees import Trees
from jitbatch.plan.saved.values import decode_value, dumps, encode_value, find_class
from jitbatch.util.errors import PlanError
from jitbatch.util.static import bits_key

CASES = cases()
PARAMS = rnn_params(jax.random.key(0))
ROWS = [normal(np.random.default_rng(0), length, INPUT) for length in (3, 1, 4)]


def bytes_of(plan: Plan) -> bytes:
    return saved_plans.to_bytes(plan, None)


def loaded(content: bytes) -> Plan:
    return Plan(*saved_plans.from_bytes(content, None))


def resealed(body: bytes) -> bytes:
    """What someone else makes who knows the format: the checksum of other bytes."""
    return body + digest(body).encode()


# --- The same again


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_same_bits(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    plan = case.plan()
    plan.save(tmp_path / "plan")
    again = Plan.load(str(tmp_path / "plan"))
    assert (repr(again), again.summary) == (repr(plan), plan.summary)
    assert_bits(case.run(again), case.run(plan))
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "plan").read_bytes()
    assert os.listdir(tmp_path) in (["again", "plan"], ["plan", "again"])
    if plan.static.executor == "fused":
        text = plan.capacity.to_json()
        assert Capacity.from_json(text) == plan.capacity
        assert Capacity.from_json(text.encode()).to_json() == text
        assert case.plan(like=Capacity.from_json(text)).static is case.plan(like=plan.capacity).static


def test_any_tool_reads_a_file(tmp_path: Path) -> None:
    CASES["short floats"].plan().save(tmp_path / "plan.zip")
    with zipfile.ZipFile(tmp_path / "plan.zip") as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read("plan.json"))["format"] == "jitbatch plan"
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        assert "int32.npy" in names
        for name in names:
            assert np.load(io.BytesIO(archive.read(name)), allow_pickle=False).ndim == 1


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Add:
    pass


@dataclass(frozen=True)
class Scale:
    by: float
    name: str = ""

    def __post_init__(self) -> None:
        Scale.made += 1


Scale.made = 0  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Slots:
    value: int


VALUES = [
    None,
    True,
    1,
    10**100,
    -7,
    "text",
    "\ud800 \N{SNOWMAN}",
    0.1,
    -0.0,
    float("nan"),
    float("inf"),
    1e-320,
    2 + 3j,
    b"\0bytes",
    (),
    (1, 1.0, True, (None,)),
    frozenset({"a"}),
    np.float32(0.1),
    np.int64(3),
    np.bool_(True),
    ml_dtypes.bfloat16(1.5),
    np.dtype("float16"),
    np.dtype(ml_dtypes.bfloat16),
    int,
    type(None),
    Color.BLUE,
    Level.LOW,
    Point(1, (2.0, "z")),
    Add(),
    Scale(0.5, "half"),
    Slots(3),
    {"b": 1, "a": [2]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values(value: Any) -> None:
    encoded = json.loads(dumps(encode_value(value, None)))
    made = Scale.made  # type: ignore[attr-defined]
    again = decode_value(encoded, ())
    assert bits_key(again) == bits_key(value) or again is value
    assert dumps(encode_value(again, None)) == dumps(encode_value(value, None))
    assert Scale.made == made  # type: ignore[attr-defined] # nothing was called


def test_what_statics_hold_is_what_the_function_sees_again(tmp_path: Path) -> None:
    seen = []

    def fun(params: Any, sample: Any) -> Any:
        seen.append(sample["op"].value)
        return params * sample["x"]

    values = [value for value in VALUES if not isinstance(value, dict)]
    for value in values:
        sample = {"op": Static(value), "x": 2.0}
        jitbatch(fun).plan(3.0, [sample]).save(tmp_path / "plan")
        other = jitbatch(fun)  # which has recorded nothing
        assert_bits(other.batch(3.0, Plan.load(tmp_path / "plan")), np.float32([6.0]))
        assert bits_key(seen[-1]) == bits_key(value)


def test_trees_keep_the_order_of_dicts_and_may_be_deep() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = (deep,)
    mixed = [
        {"b": 1, "a": (None, [2.0, True])},
        Point(1, {}),
        collections.OrderedDict(z=1, y=2j),
        collections.defaultdict(list, {"k": 1}),
        jax.ShapeDtypeStruct((2, 3), jnp.bfloat16, weak_type=True),
        Static("s"),
    ]
    data = json.loads(dumps(Trees.of([mixed, deep], "a sample").to_data()))
    again, depths = Trees.from_data(data).open()
    assert jax.tree.structure(again) == jax.tree.structure(mixed)
    assert list(map(type, jax.tree.leaves(again))) == list(map(type, jax.tree.leaves(mixed)))
    assert again[4] == mixed[4]
    assert list(again[0]) == ["b", "a"]
    for _ in range(10_000):
        (depths,) = depths
    assert depths == 0


def test_a_deep_sample(tmp_path: Path) -> None:
    deep: Any = 1.0
    for _ in range(250):
        deep = (deep,)

    def fun(params: Any, tree: Any) -> Any:
        while isinstance(tree, tuple):
            (tree,) = tree
        return params * tree

    jitbatch(fun).plan(3.0, [deep]).save(tmp_path / "plan")
    assert jitbatch(fun).batch(3.0, Plan.load(tmp_path / "plan")).tolist() == [3.0]


# --- What is not data


def doubled(x: Any) -> Any:
    return 2.0 * x


def apply(params: Any, sample: Any) -> Any:
    return params * sample["op"][0].value(sample["x"])


def test_a_function_in_a_sample_is_refused_by_name_and_pickled() -> None:
    plan = jitbatch(apply).plan(3.0, [{"op": (Static(doubled),), "x": 2.0}])
    for save in (lambda: plan.save("nowhere"), plan.capacity.to_json):
        message = (
            r"a sample of the plan at \[0\]\['op'\]\[0\] cannot be saved: it holds <function doubled.* of type function"
        )
        with pytest.raises(PlanError, match=message):
            save()
    again = pickle.loads(pickle.dumps(plan))
    assert jitbatch(apply).batch(3.0, again).tolist() == [12.0]
    assert jitbatch(apply).batch(3.0, pickle.loads(pickle.dumps(again))).tolist() == [12.0]
    with pytest.raises(PlanError, match="was unpickled, and holds values that are not data"):
        again.save("nowhere")
    capacity = pickle.loads(pickle.dumps(plan.capacity))
    assert capacity == pickle.loads(pickle.dumps(capacity)) == plan.capacity
    assert jitbatch(apply).plan(3.0, [{"op": (Static(doubled),), "x": 5.0}], like=capacity).capacity == capacity
    with pytest.raises(PlanError, match="cannot be saved: it holds <function doubled"):
        capacity.to_json()
    assert not Path("nowhere").exists()


class Gate(eqx.Module):
    linear: eqx.nn.Linear
    bias: Any
    power: int = eqx.field(static=True)


@jax.tree_util.register_dataclass
@dataclass
class Tagged:
    x: Any
    tag: str = field(metadata={"static": True})


def of_classes(params: Any, sample: Any) -> Any:
    gate, tagged = sample
    scale = {"half": 0.5, "double": 2.0}[tagged.tag]
    return params * scale * (gate.linear(tagged.x) + (0.0 if gate.bias is None else gate.bias)) ** gate.power


def test_modules_and_dataclasses_in_samples(tmp_path: Path) -> None:
    """They are made of their fields. The plan runs in a function that has recorded nothing."""
    x = np.ones(INPUT, np.float32)
    linear = eqx.nn.Linear(INPUT, 2, key=jax.random.key(0))
    samples = [(Gate(linear, None, 2), Tagged(x, "half")), (Gate(linear, x[:2], 1), Tagged(2 * x, "double"))]
    batched = jitbatch(of_classes)
    plan = batched.plan(jnp.float32(3), samples)
    plan.save(tmp_path / "plan")
    again = jitbatch(of_classes).batch(jnp.float32(3), Plan.load(tmp_path / "plan"))
    assert_bits(again, batched.batch(jnp.float32(3), plan))
    want = np.stack([of_classes(jnp.float32(3), sample) for sample in samples])
    np.testing.assert_allclose(again, want, rtol=1e-6)
    like = jitbatch(of_classes).plan(jnp.float32(3), samples, like=Capacity.from_json(plan.capacity.to_json()))
    assert like.capacity == plan.capacity


def with_module(params: Any, sample: Any) -> Any:
    return params * sample["linear"](jnp.ones(2))


def test_a_flax_module_in_a_sample_is_refused_by_name_and_pickled() -> None:
    """What Flax tells JAX of it is not data."""
    batched = jitbatch(with_module)
    plan = batched.plan(2.0, [{"linear": nnx.Linear(2, 3, rngs=nnx.Rngs(0))}])
    with pytest.raises(PlanError, match=r"a sample of the plan at \[0\]\['linear'\] cannot be saved: it holds "):
        plan.save("nowhere")
    assert_bits(jitbatch(with_module).batch(2.0, pickle.loads(pickle.dumps(plan))), batched.batch(2.0, plan))


def test_a_class_without_a_place_is_refused_by_name() -> None:
    class Local(NamedTuple):
        x: Any

    plan = jitbatch(lambda params, sample: params * sample.x).plan(3.0, [Local(2.0)])
    with pytest.raises(
        PlanError, match=r"a sample of the plan at \[0\] cannot be saved: it holds Local\(x=.* of type Local"
    ):
        plan.save("nowhere")


def test_results_need_no_names() -> None:
    """They are those that the function itself returns when it records the samples of the plan."""

    @jax.tree_util.register_dataclass
    @dataclass
    class Local:
        h: Any

    for out in ("stack", "list"):
        batched = jitbatch(lambda params, x: Local(params * x), out=out)
        results = batched.batch(3.0, loaded(bytes_of(batched.plan(3.0, [1.0, 2.0]))))
        assert [type(one) for one in (results if out == "list" else [results])] in ([Local], [Local, Local])
    lengths = jitbatch(lambda params, xs: tuple(Local(params * x) for x in xs), out="list")
    with pytest.raises(PlanError, match=r"a result at \[0\] cannot be saved: it holds .*Local"):
        bytes_of(lengths.plan(3.0, [(1.0, 2.0), (1.0,)]))


def test_results_in_another_tree_are_another_function() -> None:
    """The operations are the same, so that only the tree tells."""

    def fun(result: Callable[[Any, Any], Any]) -> Any:
        def same_name(params: Params, xs: Any) -> Any:
            return result(chain(params, xs), xs[0])

        return jitbatch(same_name)

    same = fun(lambda h, x: (h, x))
    content = pickle.dumps(same.plan(PARAMS, ROWS))
    assert_bits(same.batch(PARAMS, pickle.loads(content)), same.batch(PARAMS, same.plan(PARAMS, ROWS)))
    for other in (lambda h, x: [h, x], lambda h, x: {"h": h, "x": x}, lambda h, x: Point(h, x)):
        with pytest.raises(PlanError, match="does not fit: the function"):
            fun(other).batch(PARAMS, pickle.loads(content))


# --- Files that are damaged


def is_equal_or_refused(content: bytes, case: Any, want: Any) -> bool:
    try:
        plan = loaded(content)
    except PlanError:
        return True
    assert_bits(case.run(plan), want)
    return False


@pytest.mark.parametrize("name", ["static in a dict", "keys"])
def test_no_flipped_bit_and_no_missing_end_goes_unnoticed(name: str) -> None:
    case = CASES[name]
    plan = case.plan()
    content, want = bytes_of(plan), case.run(plan)
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            assert is_equal_or_refused(bytes(flipped), case, want)
    for length in range(len(content)):
        assert is_equal_or_refused(content[:length], case, want)
    assert is_equal_or_refused(content + b"0", case, want)


def test_no_flipped_bit_of_a_pickle_gives_other_results() -> None:
    case = CASES["static in a dict"]
    plan = case.plan()
    pickled, want = pickle.dumps(plan), case.run(plan)
    for place in range(0, len(pickled), 5):
        flipped = bytearray(pickled)
        flipped[place] ^= 1 << place % 7
        try:
            again = pickle.loads(bytes(flipped))
        except Exception:
            continue
        assert_bits(case.run(again), want)


def test_no_flipped_bit_of_a_capacity_goes_unnoticed() -> None:
    capacity = CASES["sums"].plan().capacity
    text = capacity.to_json().encode()
    for place in range(len(text)):
        for bit in range(8):
            flipped = bytearray(text)
            flipped[place] ^= 1 << bit
            with pytest.raises(PlanError):
                Capacity.from_json(bytes(flipped))
    for length in range(len(text)):
        with pytest.raises(PlanError):
            Capacity.from_json(text[:length])


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "pickle").write_bytes(pickle.dumps({}))
    for name in ("empty", "pickle"):
        with pytest.raises(PlanError, match=r"this is not a plan that `plan.save` or pickle has written"):
            Plan.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none")
    with pytest.raises(PlanError, match="is not a saved plan: it is no file, or larger than"):
        Plan.load("/dev/zero")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(7 * 2**40)
    with pytest.raises(PlanError, match="larger than 4294967296 bytes"):
        Plan.load(tmp_path / "sparse")


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan"
    CASES["fused"].plan().save(path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        CASES["keys"].plan().save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["plan"]


# --- Files that someone made up, checksum and all


def zipped(members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        archive.comment = b"sha256:" + b"0" * 64
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, kind)
    return resealed(buffer.getvalue()[:-64])


def members_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


MEMBERS = members_of(bytes_of(CASES["fused"].plan()))


def with_arrays(*arrays: Any) -> bytes:
    text = json.loads(MEMBERS["plan.json"])
    text["arrays"][: len(arrays)] = arrays
    return zipped([*({**MEMBERS, "plan.json": json.dumps(text).encode()}.items())])


def with_two_members_of_one_name() -> bytes:
    content = zipped([*MEMBERS.items(), ("int64.npy", MEMBERS["int32.npy"])])
    return resealed(content[:-64].replace(b"int64.npy", b"int32.npy"))


MADE_UP: dict[str, tuple[bytes, str]] = {
    "no zip": (resealed(b"PK" + b"\0" * 100 + b"sha256:"), "damaged"),
    "a zip of nothing": (zipped([]), "its members are others"),
    "a bomb": (zipped([("plan.json", b"0" * 2**24)], zipfile.ZIP_DEFLATED), "a member is compressed"),
    "members with one name": (with_two_members_of_one_name(), "its members are others"),
    "another member": (
        zipped([*MEMBERS.items(), ("more.npy", MEMBERS["int32.npy"])]),
        "arrays that nothing is said of",
    ),
    "another order": (zipped([*MEMBERS.items()][::-1]), "its members are others"),
    "a member that is missing": (zipped([*MEMBERS.items()][:2]), "is larger than what there is of it"),
    "deep JSON": (zipped([("plan.json", b"[" * 10**5), ("static.json", b"{}")]), "it is not JSON"),
    "a name that occurs twice": (zipped([("plan.json", b'{"a":1,"a":2}'), ("static.json", b"{}")]), "occurs twice"),
    "a number that is none": (zipped([("plan.json", b"NaN"), ("static.json", b"{}")]), "NaN is not a number of JSON"),
    "a long number": (zipped([("plan.json", b"9" * 5000), ("static.json", b"{}")]), "it is not JSON"),
    "7 TiB": (with_arrays(["float64", [2**20, 2**20]]), "more than 2147483648 elements"),
    "8 GiB": (with_arrays(["float64", [2**15, 2**15]]), "is larger than what there is of it"),
    "more than 2 ** 31 elements": (with_arrays(["int32", [2**62, 2**62, 0]]), "more than 2147483648 elements"),
    "negative sizes": (with_arrays(["int32", [-1, -4]]), "the shape of an array"),
    "many axes": (with_arrays(["int32", [1] * 33]), "the shape of an array"),
    "objects": (with_arrays(["object", [1]]), "'object' is no dtype of an array"),
    "texts": (with_arrays(["<U1000000000", [1]]), "is no dtype of an array"),
    "records": (with_arrays(["i4,i4", [1]]), "is no dtype of an array"),
    "keys of no kind": (with_arrays(["key<xyz>", [1, 2]]), "is no dtype of an array"),
    "a dtype that is a number": (with_arrays([3, [1]]), "'3' is no dtype of an array"),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_made_up_files(name: str) -> None:
    content, message = MADE_UP[name]
    with pytest.raises(PlanError, match=message):
        loaded(content)


def test_another_version() -> None:
    text = json.loads(MEMBERS["plan.json"])
    content = zipped([*({**MEMBERS, "plan.json": json.dumps(text | {"version": 2}).encode()}.items())])
    with pytest.raises(PlanError, match="'jitbatch plan' of version 2, and this release of jitbatch reads a"):
        loaded(content)


def with_static(change: Callable[[Any], None], name: str = "fused") -> bytes:
    about, static, arrays = unpack(bytes_of(CASES[name].plan()))
    content = json.loads(static)
    change(content)
    return pack(about, json.dumps(content).encode(), arrays)


def set_at(*path: Any) -> Callable[[Any], None]:
    *places, last, value = path

    def change(content: Any) -> None:
        functools.reduce(lambda part, place: part[place], places, content)[last] = value

    return change


SIZES: dict[str, Callable[[Any], None]] = {
    "an arena": set_at("arenas", 0, "capacity", 2**26),
    "an arena beyond all bounds": set_at("arenas", 0, "capacity", 2**43),
    "input rows": set_at("arenas", 0, "inputs", 2**20),
    "a row": set_at("arenas", 0, "value_class", [[2**39], "float32"]),
    "a block": set_at("phases", 0, "block", "capacity", 2**26),
    "a negative block": set_at("phases", 0, "block", "capacity", -1),
    "a margin": set_at("phases", 1, "margin", 2**25),
    "rounds": set_at("phases", 1, "rounds", 2**26),
    "edge rows": set_at("phases", 1, "edge_rows", 0, 2**26),
    "pairs": set_at("phases", 1, "pair_rows", 0, 2**26),
    "a text": set_at("phases", 1, "rounds", "64"),
    "a truth value": set_at("phases", 1, "rounds", True),
    "a fraction": set_at("phases", 1, "rounds", 64.0),
    "nothing": set_at("phases", 1, None),
    "nodes of the capacity": set_at("capacity", "nodes", 0, 1, 2**26),
    "a field more": set_at("more", 1),
    "an arena of results": set_at("out_arenas", 0, 0, 5),
    "a tree of results": set_at("out_trees", 0, 99),
}


@pytest.mark.parametrize("name", SIZES)
def test_hostile_sizes(name: str) -> None:
    with pytest.raises(PlanError, match="damaged, or nobody saved it as it is"):
        loaded(with_static(SIZES[name]))


@pytest.mark.parametrize("table", ["int32", "float32"])
def test_tables_of_rows_that_are_not_there(table: str) -> None:
    about, static, arrays = unpack(bytes_of(CASES["sums"].plan()))
    for number, array in enumerate(arrays):
        if array.dtype == table and array.size:
            for value in (-1, 2**31 - 1):
                other = [*arrays]
                other[number] = np.full_like(array, value)
                if table == "int32" and (value < 0 or number not in counts_of(about)):
                    with pytest.raises(PlanError, match="a row that is not there"):
                        loaded(pack(about, static, other))
            with pytest.raises(PlanError):
                loaded(pack(about, static, [*arrays[:number], array[..., None], *arrays[number + 1 :]]))


def counts_of(about: Any) -> list[int]:
    return [about["counts"]]


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["fused"]
    plan = case.plan()
    monkeypatch.setattr("jitbatch.util.compat.device_memory", lambda: 100)
    fresh = jitbatch(case.fun.__wrapped__)
    with pytest.raises(PlanError, match=r"needs \d+ bytes of memory for what its nodes make, and there are 100"):
        fresh.batch(*case.shared, loaded(bytes_of(plan)))
    with pytest.raises(PlanError, match=r"needs \d+ bytes of memory for what its nodes make, and there are 100"):
        fresh.plan(*case.shared, *case.mapped, like=plan.capacity)
    monkeypatch.setattr("jitbatch.util.compat.device_memory", lambda: 10)
    with pytest.raises(PlanError, match=r"needs \d+ bytes of memory for its input rows alone, and there are 10"):
        fresh.plan(*case.shared, *case.mapped, like=plan.capacity)


# --- Names


def test_classes_are_found_where_they_are_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_class(f"{__name__}:Point") is Point
    module: Any = types.ModuleType("lazy")
    module.__getattr__ = lambda name: pytest.fail("nothing is run")
    module.Alias = Point
    monkeypatch.setitem(sys.modules, "lazy", module)
    names = ["this:x", "os:system", "builtins:eval", "lazy:Thing", "lazy:Alias", "os:path.join", "", ":", "os", "a:b:c"]
    for name in names:
        with pytest.raises(PlanError, match=r"has an instance of the class '.*', which this program has not defined"):
            find_class(name)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "value",
    [
        ["object", 0],
        ["object", -1],
        ["enum", f"{__name__}:Point", "x"],
        ["enum", f"{__name__}:Color", "GREEN"],
        ["named", f"{__name__}:Color", 1, 2],
        ["named", f"{__name__}:Point", 1],
        ["dataclass", f"{__name__}:Point", 1, 2],
        ["dataclass", f"{__name__}:Scale", 1],
        ["float", "xyz"],
        ["float", "00"],
        ["type", "eval"],
        ["type", []],
        ["numpy", "O", ""],
        ["numpy", "float32", ""],
        ["what"],
        [],
        [[]],
        {"a": 1},
        1.5,
        ["dict", 1],
        ["dict", [["list"], 1]],
        ["frozenset", ["list"]],
        ["dtype", "O"],
        ["tuple", {}],
        ["bytes", 1],
        ["enum"],
        ["node"],
    ],
    ids=str,
)
def test_made_up_values(value: Any) -> None:
    data = {"nodes": [["static", value]], "trees": [[0]]}
    with pytest.raises(PlanError):
        Trees.from_data(data).open()


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"nodes": [], "trees": [[0]]},
        {"nodes": [["int"]], "trees": [[0, 0]]},
        {"nodes": [["int"]], "trees": [[]]},
        {"nodes": [["tuple", 2]], "trees": [[0]]},
        {"nodes": [["tuple", -1]], "trees": [[0]]},
        {"nodes": [["tuple", 10**12]], "trees": [[0]]},
        {"nodes": [["int"]], "trees": [[-1]]},
        {"nodes": [["int"]], "trees": [[True]]},
        {"nodes": [["eval"]], "trees": [[0]]},
        {"nodes": [3], "trees": []},
        {"nodes": [["array", [2**50], "int32", False]], "trees": []},
        {"nodes": [["array", [1], "O", False]], "trees": []},
        {"nodes": [["node", "builtins:int", None, 0]], "trees": [[0]]},
        {"nodes": [["node", f"{__name__}:Scale", None, 0]], "trees": [[0]]},
        {"nodes": [["named", "builtins:tuple", 0]], "trees": [[0]]},
        {"nodes": [["fields", "builtins:int", [], []]], "trees": [[0]]},
        {"nodes": [["fields", f"{__name__}:Tagged", ["__class__"], []], ["int"]], "trees": [[0, 1]]},
        {"nodes": [["fields", f"{__name__}:Tagged", [["x"]], []], ["int"]], "trees": [[0, 1]]},
    ],
    ids=str,
)
def test_made_up_trees(data: Any) -> None:
    with pytest.raises(PlanError):
        Trees.from_data(data).open()


def test_a_class_that_is_not_there_any_more() -> None:
    plan = jitbatch(lambda params, sample: params * sample.x).plan(3.0, [Point(2.0, 1.0)])
    content = bytes_of(plan).replace(b"test_saved_file:Point", b"test_saved_file:Gone_")
    again = loaded(resealed_members(content))
    with pytest.raises(PlanError, match=r"the class '.*:Gone_', which this program has not defined. Import the module"):
        jitbatch(lambda params, sample: params * sample.x).batch(3.0, again)


def resealed_members(content: bytes) -> bytes:
    """A file whose members were changed in place."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = []
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename)
            members.append((info.filename, content[start : start + info.file_size]))
    return zipped(members)


# --- Capacities


def sealed(change: Callable[[Any], None]) -> str:
    """The text of a capacity that someone made up, checksum and all."""
    data = json.loads(CASES["fused"].plan().capacity.to_json())
    change(data["capacity"])
    return dumps(data | {"sha256": digest(dumps(data["capacity"]).encode())})


CAPACITIES: dict[str, tuple[Callable[[Any], None], str]] = {
    "nodes": (set_at("nodes", 0, 1, 2**43), "not a number up to 67108864"),
    "many nodes": (set_at("nodes", 0, 1, 2**26), "room for more than 67108864 rows"),
    "negative nodes": (set_at("nodes", 0, 1, -2), "room for more than"),
    "inputs": (set_at("inputs", 0, 1, 2**26), "room for more than"),
    "rounds": (set_at("loops", 0, 1, "rounds", 2**26), "room for more than"),
    "items": (set_at("items", 2**26), "room for more than"),
    "a class": (set_at("inputs", 0, 0, [[2**50], "float32"]), "more than 2147483648 elements"),
    "a class of objects": (set_at("inputs", 0, 0, [[1], "object"]), "no dtype"),
    "a kind": (set_at("edges", 0, 0, 99), "an edge between kinds that are not there"),
    "no samples": (set_at("exemplars", "trees", []), "there is a sample"),
    "a deep name": (set_at("kinds", 0, json.loads("[" * 50 + "]" * 50)), "is no name"),
    "a field": (set_at("more", 1), "has other fields"),
}


@pytest.mark.parametrize("name", CAPACITIES)
def test_made_up_capacities(name: str) -> None:
    change, message = CAPACITIES[name]
    with pytest.raises(PlanError, match=message):
        Capacity.from_json(sealed(change))


def test_names_of_a_capacity_that_nothing_has() -> None:
    case = CASES["fused"]
    for change in (set_at("edges", 0, 1, 50), set_at("kinds", 0, 0, "0" * 16), set_at("shared", [[0, 77]])):
        capacity = Capacity.from_json(sealed(change))
        with pytest.raises(PlanError, match="does not fit: the function"):
            case.plan(like=capacity)


def test_other_texts_are_no_capacities() -> None:
    for text in ("", "[" * 100_000, "{}", "3", '{"format":"jitbatch plan"}', b"\xff\xfe", "null"):
        with pytest.raises(PlanError):
            Capacity.from_json(text)
    data = json.loads(CASES["fused"].plan().capacity.to_json())
    with pytest.raises(
        PlanError, match="saved in version 2 of its format, and this release of jitbatch reads version 1"
    ):
        Capacity.from_json(json.dumps(data | {"version": 2}))
    assert Capacity.from_json(json.dumps(data, indent=2)) == CASES["fused"].plan().capacity


def test_room_for_two_runs() -> None:
    case = CASES["fused"]
    deep, wide = [((((1, 2), 3), 4), 5)], [((1, 2), (3, 4)), (5, 6), (0, 1), 3]
    one, other = (case.fun.plan(*case.shared, samples).capacity for samples in (deep, wide))
    both = Capacity.from_json((Capacity.from_json(one.to_json()) | other).to_json())
    assert both == other | one == both | one
    assert len(both.samples) == len((both | both).samples)
    fresh = jitbatch(case.fun.__wrapped__)
    plans = [fresh.plan(*case.shared, samples, like=both) for samples in (deep, wide)]
    assert plans[0].static is plans[1].static
    for (origin, room), cell in zip(both.nodes, both.cells, strict=True):
        assert room == max(dict(one.nodes).get(origin, 0), dict(other.nodes).get(origin, 0)), cell
    for plan, samples in zip(plans, (deep, wide), strict=True):
        np.testing.assert_allclose(
            fresh.batch(*case.shared, plan), case.fun.batch(*case.shared, samples), rtol=1e-5, atol=1e-6
        )
    with pytest.raises(PlanError, match="granularity 'op' and 'subgraph' have no room in common"):
        _ = replace(one, granularity="op") | other


def test_texts_are_the_same_in_every_process() -> None:
    """No hash and no address is in a text: two functions that were decorated apart have one capacity."""
    case = CASES["fused"]
    texts = {jitbatch(case.fun.__wrapped__).plan(*case.shared, *case.mapped).capacity.to_json() for _ in range(2)}
    assert texts == {case.plan().capacity.to_json()}


@jitbatch
def node(params: Any, h: Any, c: Any) -> Any:
    return jnp.tanh(params["h"] @ h + c.sum()), jnp.tanh(c + h[:2])


def of_two_sums(params: Any, tree: Any) -> Any:
    """A loop with sums of two classes of values, one of them of two terms at most."""
    if not isinstance(tree, tuple):
        return params["h0"] * tree, params["h0"][:2]
    children = [of_two_sums(params, child) for child in tree]
    return node(params, sum(h for h, _ in children), sum(c for _, c in children[:2]))


def test_sums_in_one_loop_have_room_for_the_terms_of_the_longest(tmp_path: Path) -> None:
    wide = [tuple(tuple(float(i + j) for j in range(9)) for i in range(2)), (1.0, (2.0, 3.0))]
    batched = jitbatch(of_two_sums, loops="static")
    plan = batched.plan(PARAMS, wide, like=batched.plan(PARAMS, wide, like=None).capacity)
    blocks = [block for phase in plan.static.program.phases for block in getattr(phase, "blocks", ())]  # type: ignore[union-attr]
    assert any(block.longest > block.terms > 0 for block in blocks)
    plan.save(tmp_path / "plan")
    assert_bits(batched.batch(PARAMS, Plan.load(tmp_path / "plan")), batched.batch(PARAMS, plan))


@pytest.mark.parametrize("options", [{"executor": "dispatch"}, {"out": "list"}, {"out": "ragged"}], ids=str)
def test_shards_of_every_kind(options: Any, tmp_path: Path) -> None:
    def fun(params: Params, xs: Any) -> Any:
        h = chain(params, xs)
        return [h, h] if "out" in options else h + sum(xs[i, 0] for i in range(len(xs)))

    batched = jitbatch(fun, **options)
    plan = batched.plan(PARAMS, [ROWS[0], 2 * ROWS[0]], shards=2)
    plan.save(tmp_path / "plan")
    again = Plan.load(tmp_path / "plan")
    for place in range(2):
        got, want = (batched.batch(PARAMS, one.shard(place)) for one in (again, plan))
        assert_bits(jax.tree.leaves(got), jax.tree.leaves(want))


@jitbatch
def told(params: Any) -> Any:
    jax.debug.callback(TOLD.append, params)
    return 2.0 * params


TOLD: list[Any] = []


def test_cells_with_effects_that_read_no_row(tmp_path: Path) -> None:
    batched = jitbatch(lambda params, x: told(params) * x)
    plan = batched.plan(3.0, [1.0, 2.0])
    plan.save(tmp_path / "plan")
    TOLD.clear()
    assert batched.batch(3.0, Plan.load(tmp_path / "plan")).tolist() == [6.0, 12.0]
    jax.effects_barrier()
    calls = len(TOLD)
    batched.batch(3.0, plan)
    jax.effects_barrier()
    assert len(TOLD) == 2 * calls > 0
