"""The benchmarks' own parts: result files, comparing them, reporting them. Nothing here is timed."""

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import curves
import field
import regress
import report
import results
import simulation
import timing as timing_module
from parts import growth as growth_part
from parts import text
from peers import process
from peers import run as peers
from results import Failed, Job, Results, Skipped
from timing import summarise
from trees import levels_of

from jitbatch.data import Dependency, Pair
from jitbatch.data.trees import score_distribution


def timing(median: float, spread: float = 0.01) -> dict[str, Any]:
    return {"median": median, "low": median * (1 - spread), "high": median * (1 + spread), "rounds": 5}


def content(benchmark: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "settings": {"data": "random trees"},
        "machine": {
            "processor": "p",
            "cores": 2,
            "system": "s",
            "python": "3",
            "versions": {"jax": "1"},
            "commit": "abc",
        },
        "rows": rows,
    }


# --- Result files


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    measured: list[int] = []

    def job(number: int, fails: bool = False) -> Job:
        def measure() -> dict[str, Any]:
            if fails:
                raise KeyboardInterrupt
            measured.append(number)
            return {"time": timing(number)}

        return Job(Results(file, "some", {}), {"number": number}, measure)

    file = tmp_path / "some.json"
    with pytest.raises(KeyboardInterrupt):
        results.run([job(1), job(2, fails=True), job(3)])
    assert measured == [1]
    same = Results(file, "some", {})
    assert results.run([job(number)._replace(results=same) for number in (1, 2, 3)])
    assert measured == [1, 2, 3]
    assert [row["key"]["number"] for row in results.read(file)["rows"]] == [1, 2, 3]


def test_important_rows_come_first_and_nothing_is_begun_after_the_time(tmp_path: Path) -> None:
    measured: list[str] = []

    def job(name: str, rank: int) -> Job:
        def measure() -> dict[str, Any]:
            measured.append(name)
            return {}

        return Job(Results(tmp_path / f"{name}.json", "some", {}), {"name": name}, measure, rank)

    jobs = [job("later", 3), job("first", 0), job("second", 0)]
    assert results.run(jobs, minutes=0)
    assert measured == []
    results.run(jobs)
    assert measured == ["first", "second", "later"]


def test_a_row_that_fails_stops_no_other_and_is_measured_again(tmp_path: Path) -> None:
    fails = [True]

    def measure() -> dict[str, Any]:
        if fails:
            raise ValueError("not today")
        return {"steps": 3}

    file = Results(tmp_path / "some.json", "some", {})
    jobs = [Job(file, {"number": 1}, measure), Job(file, {"number": 2}, dict)]
    assert not results.run(jobs)
    assert ["failed" in row for row in file.rows] == [True, False]
    fails.clear()
    assert results.run(jobs)
    assert [(row["key"]["number"], row.get("steps")) for row in file.rows] == [(2, None), (1, 3)]


def test_rows_of_other_settings_are_kept_apart(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    Results(file, "some", {"rounds": 1}).add({"number": 1}, {})
    assert Results(file, "some", {"rounds": 1}).has({"number": 1})
    assert not Results(file, "some", {"rounds": 2}).has({"number": 1})
    (older,) = tmp_path.glob("some.*.json")
    assert results.read(older)["settings"] == {"rounds": 1}


def test_rows_of_other_code_stay_until_they_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some.json"

    def by(code: str, go_on: bool = False, data: str = "d") -> Results:
        monkeypatch.setattr(results, "commit", lambda: code)
        return Results(file, "some", {"data": data}, go_on)

    by("one").add({"number": 1}, {})
    by("two", go_on=True).add({"number": 2}, {})
    assert [(row["key"]["number"], row["commit"]) for row in results.read(file)["rows"]] == [(1, "one"), (2, "two")]
    assert "commit one (1 rows), two (1 rows);" in text.about(results.read(file))
    assert by("two", go_on=True).has({"number": 1})
    assert not by("two").has({"number": 1})
    assert by("two").has({"number": 2})
    assert not list(tmp_path.glob("some.*.json"))
    by("three").add({"number": 1}, {})
    assert [(row["key"]["number"], row["commit"]) for row in results.read(file)["rows"]] == [(2, "two"), (1, "three")]
    (older,) = tmp_path.glob("some.*.json")
    assert [row["commit"] for row in results.read(older)["rows"]] == ["one", "two"]
    assert not by("three", go_on=True, data="e").has({"number": 1})


def test_what_cannot_be_measured_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure() -> dict[str, Any]:
        raise Skipped("no wheel")

    file = tmp_path / "some.json"
    results.run([Job(Results(file, "some", {}), {"peer": "x"}, measure)])
    (row,) = results.read(file)["rows"]
    assert row["skipped"] == "no wheel"
    assert "no wheel" in capsys.readouterr().out


def test_a_summary_is_the_median_and_the_quartiles() -> None:
    assert summarise([3.0]) == (3.0, 3.0, 3.0, 1)
    assert summarise([1.0, 2.0, 3.0, 4.0, 100.0])[:3] == (3.0, 2.0, 4.0)


# --- What became slower


@pytest.mark.parametrize(
    ("new", "spread", "slower"),
    [(1.2, 0.01, True), (1.02, 0.001, False), (1.2, 0.3, False), (0.8, 0.01, False)],
    ids=["slower", "below the threshold", "within noise", "faster"],
)
def test_slower_is_beyond_threshold_and_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new: float, spread: float, slower: bool
) -> None:
    files = tmp_path / "old.json", tmp_path / "new.json"
    for file, seconds in zip(files, (1.0, new), strict=True):
        row = {"key": {"batch": 4}, "ways": {"depth": {"warm": timing(seconds, spread), "steps": 3}}, "load": 0.1}
        results.write(file, content("tradeoff", [row]))
    assert regress.main([str(file) for file in files]) == int(slower)
    out = capsys.readouterr().out
    assert f"slower: {int(slower)}" in out
    assert ("batch 4: ways depth warm" in out) == (abs(new - 1) > 0.05 and spread < 0.1)


def test_timings_in_lists_are_compared() -> None:
    row = {"key": {}, "rows": [{"data": "SST", "batch": 64, "seconds": {"fused": timing(1.0)}}]}
    ((name, _),) = regress.timings(row)
    assert name == "rows (data SST, batch 64) seconds fused"


def test_results_of_different_benchmarks_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different benchmarks: peers and growth"):
        regress.changes(content("peers", []), content("growth", []))


# --- Two runs of `jitbatch train`


def training_run(directory: Path, executor: str, losses: list[float], **settings: Any) -> str:
    directory.mkdir()
    asked = {"task": "sst", "executor": executor, "hidden": 4} | settings
    (directory / "settings.json").write_text(json.dumps(asked))
    steps = [{"kind": "step", "loss": loss} for loss in losses]
    ends = [{"kind": "epoch", "loss": losses[-1], "dev": {"accuracy": 0.5}}, {"kind": "final", "test": {"accuracy": 1}}]
    (directory / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*steps, *ends]))
    return str(directory)


def test_runs_that_compute_the_same_and_runs_that_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = training_run(tmp_path / "batch", "batch", [2.0, 1.0])
    loop = training_run(tmp_path / "loop", "loop", [2.0, 1.00001])
    far = training_run(tmp_path / "far", "loop", [2.0, 1.1])
    picture = tmp_path / "curves.png"
    assert curves.main([batch, loop, "--picture", str(picture)]) == 0
    assert "largest relative difference, loss of a step: 1.0e-05" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert curves.main([batch, loop, batch, far]) == 1
    with pytest.raises(SystemExit, match="one run has 2 steps, the other 1"):
        curves.main([batch, training_run(tmp_path / "short", "loop", [2.0])])
    with pytest.raises(SystemExit, match="the runs differ in hidden"):
        curves.main([batch, training_run(tmp_path / "other", "loop", [2.0, 1.0], hidden=5)])


# --- The report


def way(warm: float, inference: float) -> dict[str, Any]:
    counts = {
        "nodes": 20,
        "distinct": 10,
        "steps": 5,
        "bound": 4,
        "types": 2,
        "width": 2.0,
        "cold": 0.5,
        "plan": "Plan(fused)",
    }
    return counts | {"warm": timing(warm), "inference": timing(inference)}


def test_the_report_has_tables_and_plots(tmp_path: Path) -> None:
    folder, docs = tmp_path / "results", tmp_path / "docs"
    ways = {"auto, auto, auto": way(0.001, 0.002), "op, depth, dispatch": way(0.01, 0.02)}
    ways["graph, depth, dispatch"] = way(0.001, 0.04) | {"scaled": 16.0}
    key = {"workload": "SICK", "hidden": 150, "batch": 256}
    row = {
        "key": key,
        "trees": {"nodes": 87089, "levels": 171, "levels by arity": 685},
        "source": "s",
        "samples": 512,
        "minibatches": 2,
        "ways": ways,
        "work": {"flops": 1e9, "weights": 1e6, "values": 1e6},
        "load": 0.1,
    }
    results.write(folder / "tradeoff.json", content("tradeoff", [row]))
    peers = {
        "jitbatch": timing(1e-3) | {"batch": 256, "distinct": 512, "threads": 2, "versions": {"jax": "1"}},
        "DyNet agenda": timing(5e-3),
        "DyNet depth": timing(6e-3),
        "PyTorch by hand": timing(0.5e-3),
        "JAX per sample, jitted": timing(3e-3) | {"batch": 256, "distinct": 16},
        "JAX per sample": timing(1.0) | {"batch": 4, "distinct": 4},
        "DGL": {"skipped": "no wheel"},
        "JAX by hand": {"failed": "Traceback\nValueError: x"},
    }
    rows = [{"key": key | {"mode": mode}, "peers": peers, "load": 0.1} for mode in ("training", "inference")]
    rows.append({"key": key | {"mode": "training", "batch": 1}, "failed": "Traceback\nKeyError: y"})
    results.write(folder / "peers.json", content("peers", rows))
    grown = [
        {
            "key": {"axis": "depth", "value": n},
            "cold": n,
            "warm": timing(n),
            "inference": timing(n**2),
            "training": timing(n),
        }
        for n in (8, 16, 32)
    ]
    results.write(folder / "growth.json", content("growth", grown))
    hand = {"figure": 2, "data": "SST", "hidden": 128, "batch": 64, "mode": "training", "ms": {"fused": 20.0}}
    hand["ratio"] = {"by hand, scans": 1.1, "by hand, unrolled": 0.9}
    planned = {"case": "sst", "minibatch": 64, "apart": True, "warm us a node": 0.5}
    settled = {
        "workload": "one tree",
        "what": "step",
        "calls to settle": 900,
        "auto": timing(2e-3),
        "loop": timing(1e-3),
    }
    measured = {"by hand": hand, "planning": planned, "auto": settled}
    figures = [{"key": {"figure": name}, "command": "x.py", "rows": [one]} for name, one in measured.items()]
    results.write(folder / "figures.json", content("figures", figures))

    report.main(["--results", str(folder), "--docs", str(docs)])
    text = (docs / "benchmarks.md").read_text(encoding="utf-8")
    for line in (
        "| SICK, training, against DyNet | 4 |  | 5.00 |",
        "| SICK, training, against PyTorch by hand | 3 |  | 0.500 (missed) |",
        "| training, against per sample, compiled | 3.01 | 3.00 | JAX per sample, jitted | 256 |",
        "- SICK, hidden 150, training: PyTorch by hand 2.00 at minibatch 256",
        "| DyNet agenda | 200 ± 1 % (5.00) |",
        r"| JAX per sample, jitted | 333 ± 1 %\* (3.00) |",
        r"| JAX per sample | 1.00 ± 1 %\*\* (1,000) |",
        "- DGL on SICK: no wheel",
        "- JAX by hand on SICK: it failed: ValueError: x",
        "batch 1, mode training: it failed: KeyError: y",
        "| **auto, auto, auto** | 20 | 10 | 5 | 4 | 2.00 | 500 | 1.00 ± 1 % | 2.00 ± 1 % |  | 171,000 |",
        r"| 40.0 ± 1 %\* |  | 12,500\* |",
        "have 87,089 nodes",
        "nothing here was measured on an accelerator",
        "| depth | 8 to 32 | 1.00 | 1.00 | 2.00 | 1.00 |",
        "| SST, hidden 128, training | 64 | 20.0 | 1.10 | 0.90 |",
        "|  | SST, minibatch 64, XLA on one core, planning on the others |",
        "| warm us a node | 0.500 |",
        "| one tree, step | 2.00 | 1.00 | 2.00 | 900 |",
    ):
        assert line in text
    for name in ("tradeoff", "simulation", "peers", "growth"):
        assert (docs / "images" / f"{name}.png").stat().st_size > 1000


# --- Counting


def test_levels_of_trees() -> None:
    leaf = Dependency(1, ())
    left, right = Dependency(2, (leaf, leaf)), Dependency(3, (Dependency(4, (leaf,)),))
    assert levels_of([Pair(left, right, score_distribution(3.0))]) == (3, 4)


# --- Peers


def test_a_peer_that_computes_something_else_is_not_timed() -> None:
    peers.check("same", [1.00001, 0.9], [1.0, 0.9])
    peers.check("inference", [1.0], [1.0, 0.9])
    with pytest.raises(Failed, match="other has the losses"):
        peers.check("other", [1.001], [1.0])
    with pytest.raises(Failed, match="gradients has the losses"):
        peers.check("gradients", [1.0, 0.99994], [1.0, 0.9999])


def test_a_process_answers_requests_and_says_what_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "half.py"
    script.write_text(PEER, encoding="utf-8")
    monkeypatch.setitem(process.PEERS, "half", process.Peer((str(script),)))
    (tmp_path / "samples.json").write_text("[1, 2, 3, 4]", encoding="utf-8")
    task = {"workload": "SICK", "hidden": 1, "training": False, "batch": 2, "minibatches": 2, "data": None}
    task |= {"distinct": 3, "number": 4, "weights": "", "samples": str(tmp_path / "samples.json")}
    with process.Pool() as pool:
        assert pool.ask("half", task=task)["losses"] == [0.75]
        assert pool.ask("half", task=task | {"training": True})["losses"] == [0.75, 0.375]
        assert pool.ask("half", task=task | {"batch": 6, "minibatches": 1})["losses"] == [1.0]
        assert pool.ask("half", round=True)["seconds"] >= 0
        with pytest.raises(Skipped, match="no SST"):
            pool.ask("half", task=task | {"workload": "SST"})
        with pytest.raises(Failed, match="KeyError"):
            pool.ask("half", task=task | {"workload": "other"})


PEER = """
from worker import Runner, Unsupported, serve

def make(task):
    print("what a library prints")
    if task.workload == "SST":
        raise Unsupported("no SST")
    weight = [0.5]
    def run(batches, training):
        losses = [sum(batch) * weight[0] / len(batch) for batch in batches]
        weight[0] /= 1 + training
        return losses
    return Runner(task.read_samples(), {"SICK": run}[task.workload])

serve(make)
"""


def test_slow_peers_get_fewer_samples() -> None:
    task = {"batch": 64, "minibatches": 4, "distinct": 256}
    sizes = {name: tuple(peers.limited(task, name).values()) for name in process.PEERS}
    assert sizes["DyNet agenda"] == (64, 4, 256)
    assert sizes["PyTorch per sample"] == (64, 1, 64)
    assert sizes["JAX per sample, jitted"] == (64, 1, 16)
    assert sizes["JAX per sample"] == (4, 1, 4)
    one = peers.limited({"batch": 1, "minibatches": 32, "distinct": 32}, "JAX per sample, jitted")
    assert one == {"batch": 1, "minibatches": 16, "distinct": 16}


def test_peers_that_fail_or_compute_something_else_are_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pool:
        def ask(self, name: str, **request: Any) -> dict[str, Any]:
            if "round" in request:
                return {"seconds": 4.0}
            if name == "DGL":
                raise Skipped("no wheel")
            return {"losses": [2.0 if name == "DyNet depth" else 1.0], "versions": {}}

        def once(self, name: str, task: dict[str, Any]) -> dict[str, Any]:
            return {"losses": [1.0, 0.9]}

    monkeypatch.setattr(peers, "exchange", lambda *_: {})
    monkeypatch.setattr(peers, "PAUSE", 0)
    names = ("jitbatch", "DyNet agenda", "DyNet depth", "DGL", "JAX per sample")
    grid = peers.Grid({}, {}, 7, names)
    task = {"workload": "SICK", "training": False, "batch": 8, "minibatches": 2, "distinct": 16}
    row = peers.contest(task, grid, Pool(), tmp_path)["peers"]  # type: ignore[arg-type]
    assert row["DyNet agenda"]["median"] == 0.25
    assert row["DyNet agenda"]["rounds"] == 3
    assert row["JAX per sample"]["median"] == 1.0
    assert row["DGL"] == {"skipped": "no wheel"}
    assert "has the losses [2.0]" in row["DyNet depth"]["failed"]


def test_a_package_that_cannot_be_installed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(process.venv, "create", lambda *_, **__: None)
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found")
    monkeypatch.setattr(process.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(Skipped, match=r"dyNET38==2\.2 numpy<2 cannot be installed: ERROR: No matching distribution"):
        process.python_of("dynet")


def test_the_modules_examples_hold() -> None:
    for module in (curves, text, growth_part, simulation, timing_module):
        assert doctest.testmod(module).failed == 0


def test_models_of_the_zoo_need_at_least_the_bound() -> None:
    if field.ED_BATCH not in field.POLICIES:
        field.register(field.Policy(field.ED_BATCH, field.frontier))
    try:
        made = field.ZOO["lattice-gru"](np.random.default_rng(0), 3, 4)
        steps = field.steps_of(made)
    finally:
        del field.POLICIES[field.ED_BATCH]
    assert 0 < steps["bound"] <= steps["layers"] <= min(steps["agenda"], steps["depth"])
    assert steps["bound"] <= steps[field.ED_BATCH] <= steps["nodes"]
    assert all(speed > 0 for speed in field.speeds_of(made, rounds=1).values())
