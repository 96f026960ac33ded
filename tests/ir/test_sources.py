"""Where cells come from: each function's notes, apart from the name that a cell has in the whole process."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jitbatch.ir.cell import Cell, intern_cell, reduction_cell
from jitbatch.ir.sources import Source, Sources


def make_cell() -> Cell:
    return intern_cell(jax.make_jaxpr(lambda x: jnp.sin(x) * 61.5)(1.0), "outer.<locals>.first", "first.py:1")


def test_a_cell_without_a_note_has_the_name_of_whoever_made_it() -> None:
    assert Sources().of(make_cell()) == Source("first", "first.py:1")


def test_each_function_has_notes_of_its_own() -> None:
    mine, other = Sources(), Sources()
    mine.note(make_cell(), lambda: Source("mine", "mine.py:3"))
    assert mine.of(make_cell()) == Source("mine", "mine.py:3")
    assert other.of(make_cell()).name == "first"


def test_the_first_note_stays_and_no_other_is_made() -> None:
    sources, made = Sources(), []

    def note(name: str) -> Source:
        made.append(name)
        return Source(name, "mine.py:3")

    for name in ("earlier", "later"):
        sources.note(make_cell(), lambda name=name: note(name))
    assert sources.of(make_cell()).name == "earlier"
    assert made == ["earlier"]


def test_names_are_those_that_users_wrote() -> None:
    names = {
        "Model.encode": "Model.encode",
        "outer.<locals>.inner": "inner",
        "outer.<locals>.<genexpr>": "outer",
        "outer.<locals>.inner.<locals>.<listcomp>": "inner",
        "<listcomp>": "<listcomp>",
    }
    for qualified, plain in names.items():
        sources = Sources()
        sources.note(make_cell(), lambda qualified=qualified: Source(qualified, "model.py:3"))
        assert sources.of(make_cell()).name == plain


def test_a_sum_is_called_a_sum_wherever_it_was_written() -> None:
    sources = Sources()
    sources.note(reduction_cell("sum", (4,), jnp.dtype("float32")), lambda: Source("pooled", "model.py:3"))
    assert sources.of(reduction_cell("sum", (4,), jnp.dtype("float32"))) == Source("sum", "model.py:3")
