"""What a process reads of others outside of rounds, on a coordination service in place of that of JAX."""

from __future__ import annotations

import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jitbatch.step import watch
from jitbatch.step.watch import FAILED, WAITING, Point, Watch
from jitbatch.util import compat
from jitbatch.util.errors import ProcessError


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The keys of the service. This is process 0 of two."""
    texts: dict[str, str] = {}

    def received(folder: str) -> dict[str, str]:
        return {key.removeprefix(folder): text for key, text in texts.items() if key.startswith(folder)}

    monkeypatch.setattr(compat, "send", texts.__setitem__)
    monkeypatch.setattr(compat, "received", received)
    monkeypatch.setattr(compat, "forget", texts.pop)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(Watch, "_start", lambda self: None)
    monkeypatch.setattr(watch, "LEAVES", 0.1)
    return texts


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the process has ended with."""
    ended: list[str] = []
    monkeypatch.setattr(watch, "end", ended.append)
    return ended


class Unready:
    """A result of a program that waits for another process."""

    is_done = False

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return self.is_done


def test_a_failure_is_of_a_channel_or_of_the_process(texts: dict[str, str]) -> None:
    own = Watch()
    own.tell("train", "KeyError: 'a'")
    assert json.loads(texts[f"{FAILED}0"]) == {"train": "KeyError: 'a'"}
    texts[f"{FAILED}1"] = json.dumps({"train": "ValueError: b"})
    own.look()
    assert own.failure("train") == "process 1 of 2 has failed: ValueError: b"
    assert own.failure("evaluate") is None
    texts[f"{FAILED}1"] = json.dumps({"": "OSError: c"})
    own.look()
    assert own.failure("evaluate") == "process 1 of 2 has failed: OSError: c"


def test_a_process_that_waits_for_a_failed_one_on_a_device_ends(
    texts: dict[str, str], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Watch()
    result: Any = Unready()
    own._running = "train", lambda: result
    texts[f"{FAILED}1"] = json.dumps({"evaluate": "ValueError: another step"})
    monkeypatch.setattr(watch, "GRACE", -1.0)
    own.look()
    assert ended == []
    texts[f"{FAILED}1"] = json.dumps({"train": "ValueError: b"})
    monkeypatch.setattr(watch, "GRACE", 100.0)
    own.look()
    assert ended == []
    monkeypatch.setattr(watch, "GRACE", -1.0)
    own.look()
    assert ended == ["process 1 of 2 has failed: ValueError: b"]
    result.is_done = True
    own.look()
    assert len(ended) == 1


def test_a_running_program_is_known_by_its_result(texts: dict[str, str], ended: list[str]) -> None:
    own = Watch()
    with own.running("train") as ran:
        assert own._running == ("train", None)
        ran({"loss": jax.block_until_ready(jnp.ones(2)), "number": 3})
    texts[f"{FAILED}1"] = json.dumps({"train": "ValueError: b"})
    own.look()
    assert ended == []


def test_processes_that_wait_elsewhere_are_met(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WAITS_LONG", 0.0)
    own, met = Watch(), []
    other = Point("evaluate", 1, "call 1 of evaluate")
    texts[f"{WAITING}1"] = json.dumps(other)
    with own.waiting(Point("train", 7, "call 3 of train"), met.append):
        own.look()
        assert json.loads(texts[f"{WAITING}0"]) == ["train", 7, "call 3 of train"]
        assert met == []  # it may have gone on since
        own.look()
        assert met == [other]
        texts[f"{WAITING}1"] = json.dumps(Point("train", 7, "call 3 of train"))
        own.look()
        own.look()
        assert met == [other]
    own.look()
    assert f"{WAITING}0" not in texts
    own._callers.add(-1)  # steps are called in another thread, too: it may come where others wait
    with own.waiting(Point("train", 8, "call 3 of train"), met.append):
        own.look()
        assert f"{WAITING}0" not in texts


def test_an_exception_that_ends_a_process_is_waited_for(texts: dict[str, str]) -> None:
    own = Watch()
    begin = time.monotonic()
    own.wait_for_failure([1])
    assert time.monotonic() - begin >= 0.1
    texts[f"{FAILED}1"] = json.dumps({"": "ValueError: b"})
    with pytest.raises(ProcessError, match="process 1 of 2 has failed: ValueError: b"):
        own.wait_for_failure([1])
