"""`jitbatch explain` on the command line."""

from __future__ import annotations

import argparse
import codecs
import json
import sys
from pathlib import Path

import pytest

from jitbatch import JitbatchError
from jitbatch.cli import _explain

MODEL = """
import jax.numpy as jnp
from jitbatch import jitbatch

@jitbatch
def node(params, left, right):
    return jnp.tanh(params["w"] * left + right)

@jitbatch
def total(params, tree):
    return node(params, *(total(params, t) for t in tree)) if isinstance(tree, tuple) else params["w"] * tree

@jitbatch(in_axes=(None, None, 0))
def scaled(scale, params, x):
    return scale * params["w"] * x

def params():
    return {"w": jnp.ones(2)}

weights = {"w": jnp.ones(2)}
scale = 2.0
trees = [(1.0, (2.0, 3.0)), 4.0, (5.0, 6.0)]
text = "text"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "explained_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    sys.modules.pop("explained_model", None)
    return tmp_path


def explain(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    _explain.add_arguments(parser)
    return _explain.run(parser.parse_args(argv))


def test_samples_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        explain("explained_model:total", "--params", "explained_model:params", "--data", "explained_model:trees") == 0
    )
    out = capsys.readouterr().out
    assert "3 samples" in out
    assert "explained_model.py:" in out


def test_samples_of_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = [[1.0, [2.0, 3.0]], 4.0, [5.0, 6.0]]
    (folder / "trees.json").write_text(json.dumps(trees))
    (folder / "trees.jsonl").write_text("\n".join(map(json.dumps, trees)) + "\n\n")
    outs = []
    for name in ("trees.json", "trees.jsonl", "explained_model:trees"):
        explain("explained_model:total", "--params", "explained_model:weights", "--data", name)
        outs.append(capsys.readouterr().out.partition("analysis")[0])
    assert outs[0] == outs[1] == outs[2]


@pytest.mark.parametrize("name", ["trees.json", "trees.jsonl"])
def test_files_with_a_byte_order_mark_or_of_no_text(name: str, folder: Path) -> None:
    (folder / name).write_bytes(codecs.BOM_UTF8 + b"[1.0, 2.0]")
    assert _explain.read_samples(name) == ((1.0, 2.0) if name == "trees.json" else [(1.0, 2.0)])
    (folder / name).write_bytes(b"\n\xff")
    with pytest.raises(JitbatchError, match=f"{name}:2: this is not UTF-8 text"):
        _explain.read_samples(name)


def test_several_shared_arguments_a_limit_and_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "numbers.json").write_text("[1.0, 2.0, 3.0]")
    explain(
        "explained_model:scaled", "--params", "explained_model:scale", "--params", "explained_model:weights", "--data",
        "numbers.json", "--limit", "2", "--html", "page.html",
    )  # fmt: skip
    out = capsys.readouterr().out
    assert "2 samples" in out
    assert "written to page.html" in out
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


WRONG = {
    "no colon": (["explained_model", "--data", "x.json"], "not of the form module:name"),
    "no module": (["nothing_here:f", "--data", "x.json"], "there is no module 'nothing_here'"),
    "no name": (["explained_model:forest", "--data", "x.json"], "has no 'forest'; it has jitbatch, jnp, node"),
    "not decorated": (["explained_model:params", "--data", "x.json"], "not a function decorated with @jitbatch"),
    "no file": (["explained_model:total", "--data", "x.json"], "there is no file 'x.json'"),
    "not JSON": (["explained_model:total", "--data", "bad.jsonl"], "bad.jsonl:2 is not JSON"),
    "not a list": (["explained_model:total", "--data", "number.json"], "holds a float, not a list of samples"),
    "no params": (["explained_model:total", "--data", "ok.json"], "missing a required argument: 'tree'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name: str, folder: Path) -> None:
    (folder / "bad.jsonl").write_text("1.0\n{oops\n")
    (folder / "number.json").write_text("1.0")
    (folder / "ok.json").write_text("[1.0]")
    argv, text = WRONG[name]
    with pytest.raises(JitbatchError) as caught:
        explain(*argv)
    assert text in str(caught.value)
