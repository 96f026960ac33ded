"""The cost model: what batches need, what is predicted for them, and where measured costs are kept."""

import dataclasses
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitbatch import calibrate, jitbatch
from jitbatch._api import Batched
from jitbatch._context import Structure
from jitbatch._cost import (
    ON_CPU,
    Costs,
    Load,
    default_costs,
    dispatch_seconds,
    fused_seconds,
    load_of,
    loop_seconds,
    structures_price,
    whole_seconds,
    work_of,
)
from jitbatch._graph import Graph
from jitbatch._known import _known, cache_directory, known_costs, measured_on, path_of, store_costs

WIDTH = 8


@jitbatch
def cell(weights: Any, x: Any, y: Any) -> Any:
    return jnp.tanh(x @ weights + y)


@jitbatch
def chain(weights: Any, xs: list[Any]) -> Any:
    y = xs[0]
    for x in xs[1:]:
        y = cell(weights, x, y)
    return y


WEIGHTS = jnp.ones((WIDTH, WIDTH))


def chains(*lengths: int) -> list[list[Any]]:
    return [[np.full(WIDTH, i, np.float32) for i in range(length)] for length in lengths]


def graphs_of(fun: Batched[..., Any], shared: Any, samples: list[Any]) -> list[Graph]:
    plan = fun.plan(shared, samples)
    (context,) = fun._planner.contexts
    assert plan.static.tables is context.tables
    by_structure = {graph.structure: graph for graph in context.graphs}
    return [by_structure[one] for one in map(structure_key, samples)]


def structure_key(sample: Any) -> Any:
    return Structure((sample,), 0, ["sample"]).key


def load(*lengths: int) -> Load:
    return load_of(graphs_of(jitbatch(chain.__wrapped__), WEIGHTS, chains(*lengths)))


def test_work_of_a_node() -> None:
    (graph,) = graphs_of(jitbatch(chain.__wrapped__), WEIGHTS, chains(2))
    work = work_of(graph.tables.kinds[int(graph.kind[0])])
    assert work.flops == 2 * WIDTH * WIDTH + 2 * WIDTH
    assert (work.row_bytes, work.bound_bytes) == (3 * 4 * WIDTH, 4 * WIDTH * WIDTH)


def test_load_of_a_batch() -> None:
    got = load(4, 4, 6)
    assert (got.samples, got.structures, got.kinds) == (3, 2, 1)
    assert got.nodes == 3 + 3 + 5
    assert got.steps == 5
    one = 4 * WIDTH * WIDTH
    assert (got.step_bytes, got.sample_bytes, got.structure_bytes) == (5 * one, 11 * one, 8 * one)
    assert not got.has_effects


def test_one_sample_is_fastest_alone_and_many_are_not() -> None:
    one, many = load(20), load(*range(10, 74))
    assert loop_seconds(one, ON_CPU) < fused_seconds(one, ON_CPU) < dispatch_seconds(one, ON_CPU)
    assert fused_seconds(many, ON_CPU) < loop_seconds(many, ON_CPU)
    equal = load(*[20] * 64)
    assert whole_seconds(equal, ON_CPU) < loop_seconds(equal, ON_CPU)


def test_programs_of_structures_cost_by_their_nodes() -> None:
    short, long = load(3), load(30)
    assert structures_price(long, ON_CPU) > structures_price(short, ON_CPU)
    assert structures_price(load(3, 30), ON_CPU) == pytest.approx(
        structures_price(short, ON_CPU) + structures_price(long, ON_CPU)
    )


# --- Where costs are kept


OTHER = Costs(**{field.name: 0.5 + number for number, field in enumerate(dataclasses.fields(Costs))})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("JITBATCH_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    """As a new process."""
    _known.clear()


def test_defaults_until_calibrated(directory: Path) -> None:
    assert known_costs() == default_costs(jax.default_backend())
    assert not directory.exists()


def test_stored_costs_are_known_later(directory: Path) -> None:
    store_costs(OTHER)
    assert known_costs() == OTHER
    forget()
    assert known_costs() == OTHER
    assert [file.name for file in directory.iterdir()] == [path_of(measured_on()).name]


def broken(name: str, data: dict[str, Any]) -> str:
    if name == "not json":
        return "{"
    if name == "not an object":
        return "[1, 2]"
    if name == "other device":
        data["device"] = "abacus"
    if name == "other release":
        data["jitbatch"] = "0.0.0"
    if name == "missing cost":
        del data["costs"]["call"]
    if name == "unknown cost":
        data["costs"]["luck"] = 1.0
    if name == "negative":
        data["costs"]["call"] = -1.0
    if name == "not finite":
        data["costs"]["call"] = math.nan
    if name == "no number":
        data["costs"]["call"] = "fast"
    return json.dumps(data)


@pytest.mark.parametrize(
    "name",
    [
        "not json", "not an object", "other device", "other release", "missing cost", "unknown cost", "negative",
        "not finite", "no number",
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_reported_and_replaced(name: str, directory: Path) -> None:
    store_costs(OTHER)
    path = path_of(measured_on())
    path.write_text(broken(name, json.loads(path.read_text())))
    forget()
    with pytest.warns(UserWarning, match=r"does not hold the costs of this backend.*calibrate\(\)` replaces it"):
        assert known_costs() == default_costs(jax.default_backend())
    store_costs(OTHER)
    forget()
    assert known_costs() == OTHER


def test_bytes_that_are_no_text_are_reported(directory: Path) -> None:
    store_costs(OTHER)
    path_of(measured_on()).write_bytes(b"\xff\xfe\x00")
    forget()
    with pytest.warns(UserWarning, match="does not hold the costs"):
        known_costs()


def test_a_disk_that_cannot_be_written_to_is_no_error(directory: Path) -> None:
    directory.write_text("a file where a folder should be")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store_costs(OTHER)
        assert known_costs() == OTHER
        forget()
        assert known_costs() == default_costs(jax.default_backend())


def test_the_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITBATCH_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/jitbatch")


# --- Calibration


def test_calibration(directory: Path) -> None:
    before = time.process_time()
    costs = calibrate()
    assert time.process_time() - before < 4  # below 2 s where nothing else runs
    assert all(0 < cost < 10 for cost in dataclasses.asdict(costs).values())
    assert known_costs() == costs
    forget()
    assert known_costs() == costs
    assert "GFLOP/s" in str(costs)
    assert "a node" in str(costs)
