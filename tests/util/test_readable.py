"""Numbers and places as people read them, at the borders between units. The rest is in the doctests."""

import pytest

from jitbatch.util.readable import readable_count, readable_seconds, short_paths


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (9_999, "9,999"), (10_000, "10.0k"), (1e6, "1.0M"), (2e12, "2.0T"), (3e15, "3000.0T")]
)
def test_counts(count: float, text: str) -> None:
    assert readable_count(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0.0 us"), (1e-3, "1.0 ms"), (1.0, "1.00 s"), (90.0, "90.00 s")])
def test_seconds(seconds: float, text: str) -> None:
    assert readable_seconds(seconds) == text


def test_places_that_are_no_paths_stay_as_they_are() -> None:
    places = ["/a/b/model.py:3", "<stdin>:1", "/a/other.py:5"]
    assert short_paths(places) == {
        "/a/b/model.py:3": "b/model.py:3",
        "<stdin>:1": "<stdin>:1",
        "/a/other.py:5": "other.py:5",
    }
    assert short_paths([]) == {}


def test_a_single_file_has_no_folder() -> None:
    assert short_paths(["/a/b/model.py:3"]) == {"/a/b/model.py:3": "model.py:3"}
