"""The benchmarks' own parts: result files, comparing them, reporting them. Nothing here is timed."""

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import curves
import regress
import report
import results
import simulation
import timing as timing_module
from peers import run as peers
from results import Job, Results, Skipped
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

        return Job({"number": number}, measure)

    file = tmp_path / "some.json"
    with pytest.raises(KeyboardInterrupt):
        results.run(Results(file, "some", {}), [job(1), job(2, fails=True), job(3)])
    assert measured == [1]
    results.run(Results(file, "some", {}), [job(1), job(2), job(3)])
    assert measured == [1, 2, 3]
    assert [row["key"]["number"] for row in results.read(file)["rows"]] == [1, 2, 3]


def test_rows_of_other_settings_are_kept_apart(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    Results(file, "some", {"rounds": 1}).add({"number": 1}, {})
    assert Results(file, "some", {"rounds": 1}).has({"number": 1})
    assert not Results(file, "some", {"rounds": 2}).has({"number": 1})
    (older,) = tmp_path.glob("some.*.json")
    assert results.read(older)["settings"] == {"rounds": 1}


def test_what_cannot_be_measured_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measure() -> dict[str, Any]:
        raise Skipped("no wheel")

    file = tmp_path / "some.json"
    results.run(Results(file, "some", {}), [Job({"peer": "x"}, measure)])
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
    key = {"workload": "SICK", "hidden": 150, "batch": 256}
    work = {"flops": 1e9, "weights": 1e6, "values": 1e6}
    trees = {"nodes": 87089, "levels": 171, "levels by arity": 685}
    row = {
        "key": key,
        "trees": trees,
        "source": "s",
        "samples": 512,
        "minibatches": 2,
        "ways": ways,
        "work": work,
        "load": 0.1,
    }
    results.write(folder / "tradeoff.json", content("tradeoff", [row]))
    peers = {
        "jitbatch": timing(1e-3),
        "DyNet agenda": timing(5e-3),
        "JAX per sample, jitted": timing(3e-3),
        "DGL": {"skipped": "no wheel"},
        "PyTorch by hand": {"failed": "Traceback\nValueError: x"},
    }
    rows = [{"key": key | {"mode": mode}, "peers": peers, "load": 0.1} for mode in ("training", "inference")]
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

    report.main(["--results", str(folder), "--docs", str(docs)])
    text = (docs / "benchmarks.md").read_text(encoding="utf-8")
    assert "| **auto, auto, auto** | 20 | 10 | 5 | 4 | 2.00 | 500 | 1.00 ± 1 % | 2.00 ± 1 % |  | 171,000 |" in text
    assert "have 87,089 nodes" in text
    assert "nothing here was measured on an accelerator" in text
    assert "| DyNet agenda | 5.00 ± 1 % (5.00) | 5.00 ± 1 % (5.00) |" in text
    assert "| training | per sample, compiled: JAX per sample, jitted | 3.01 | 3.00 | 256 |" in text
    assert "| SICK, hidden 150, training, minibatch 256 | DyNet | 4.0 | 5.00 | yes |" in text
    assert "- DGL on SICK: no wheel" in text
    assert "- PyTorch by hand on SICK: it failed: ValueError: x" in text
    assert "| depth | 8 to 32 | 1.00 | 1.00 | 2.00 | 1.00 |" in text
    for name in ("tradeoff", "peers", "growth"):
        assert (docs / "images" / f"{name}.svg").stat().st_size > 1000


# --- Counting


def test_levels_of_trees() -> None:
    leaf = Dependency(1, [])
    left, right = Dependency(2, [leaf, leaf]), Dependency(3, [Dependency(4, [leaf])])
    assert levels_of([Pair(left, right, score_distribution(3.0))]) == (3, 4)


# --- Peers


def test_a_peer_that_computes_something_else_is_not_timed() -> None:
    peers.check("same", [1.00001, 0.9], [1.0, 0.9])
    with pytest.raises(peers.Failed, match="other has the losses"):
        peers.check("other", [1.001], [1.0])
    with pytest.raises(peers.Failed, match="gradients has the losses"):
        peers.check("gradients", [1.0, 0.99994], [1.0, 0.9999])


def test_a_process_answers_requests_and_says_what_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "half.py"
    script.write_text(PEER, encoding="utf-8")
    monkeypatch.setitem(peers.PEERS, "half", peers.Peer((str(script),)))
    (tmp_path / "samples.json").write_text("[1, 2, 3, 4]", encoding="utf-8")
    task = {"workload": "SICK", "hidden": 1, "training": False, "batch": 2, "minibatches": 2, "number": 4, "data": None}
    task |= {"weights": "", "samples": str(tmp_path / "samples.json")}
    with peers.Pool() as pool:
        assert pool.ask("half", task=task)["losses"] == [0.75]
        assert pool.ask("half", round=True)["seconds"] >= 0
        with pytest.raises(Skipped, match="no SST"):
            pool.ask("half", task=task | {"workload": "SST"})
        with pytest.raises(peers.Failed, match="KeyError"):
            pool.ask("half", task=task | {"workload": "other"})


PEER = """
from worker import Runner, Unsupported, serve

def make(task):
    print("what a library prints")
    if task.workload == "SST":
        raise Unsupported("no SST")
    half = {"SICK": lambda batches, training: [sum(batch) / 2 / len(batch) for batch in batches]}
    return Runner(task.read_samples(), half[task.workload])

serve(make)
"""


def test_a_package_that_cannot_be_installed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(peers.venv, "create", lambda *_, **__: None)
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found")
    monkeypatch.setattr(peers.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(Skipped, match="dyNET38 numpy<2 cannot be installed: ERROR: No matching distribution"):
        peers.python_of("dynet")


def test_the_modules_examples_hold() -> None:
    for module in (curves, report, simulation, timing_module):
        assert doctest.testmod(module).failed == 0
