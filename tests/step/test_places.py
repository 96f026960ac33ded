"""Places in the arguments of a step: read from text, found, and replaced."""

from typing import Any

import jax
import pytest

from jitbatch.step.places import Parameters, Place, find, paths_to
from jitbatch.util.errors import ArgumentError


def step(params: Any, /, batch: Any, *further: Any, scale: float = 1.0) -> Any:
    return params, batch, further, scale


@pytest.mark.parametrize("text", ["trees", "batch['trees']", "batch.trees", "batch[0]", "batch['a'][1].b"])
def test_text_is_read_and_written(text: str) -> None:
    assert str(Place.parse(text)) == text


@pytest.mark.parametrize("text", ["", "trees +", "f(x)", "batch[x]", "3"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="does not name an argument, or a part of one"):
        Place.parse(text)


def test_a_call_is_made_as_it_was_given() -> None:
    parameters = Parameters.of(step)
    bound = parameters.bind((1, {"trees": [2]}, 3, 4), {"scale": 5.0})
    assert bound.call(step) == step(1, {"trees": [2]}, 3, 4, scale=5.0)
    replaced = bound.replaced(Place.parse("batch['trees']"), "plan").replaced(Place.parse("further[1]"), "row")
    assert replaced.call(step) == (1, {"trees": "plan"}, (3, "row"), 5.0)
    assert bound.at(Place.parse("batch['trees']")) == [2]
    with pytest.raises(ArgumentError, match=r"there is nothing at batch\['graphs'\]"):
        bound.at(Place.parse("batch['graphs']"))
    with pytest.raises(ArgumentError, match="the step has no argument 'trees': it takes params, batch, further, scale"):
        parameters.check(Place("trees"), "the step")


def test_the_outermost_part_of_the_same_structure_is_found() -> None:
    leaves = [object(), object()]
    argument = {"a": [leaves], "b": object()}

    def way(part: Any) -> Any:
        found = find(argument, list(map(id, jax.tree.leaves(part))), jax.tree.structure(part))
        return None if found is None else jax.tree_util.keystr(found)

    assert way(argument) == ""
    assert way([leaves]) == "['a']"
    assert way(leaves) == "['a'][0]"
    assert way(leaves[:1]) is None
    assert way(tuple(leaves)) is None


def test_an_object_is_found_by_identity() -> None:
    edges = [(), ()]
    paths = paths_to({"a": [[(), ()], edges], "b": edges}, edges)
    assert list(map(jax.tree_util.keystr, paths)) == ["['a'][1]", "['b']"]
    assert paths_to(edges, edges) == [()]
    assert paths_to({"a": [[(), ()]]}, edges) == []
