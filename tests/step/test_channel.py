"""Rounds of messages, on a coordination service in place of that of JAX."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest

from jitbatch.step import channel as channel_module
from jitbatch.step import watch
from jitbatch.step.channel import Channel, Message
from jitbatch.util import compat
from jitbatch.util.errors import ProcessError

COUNT = 3


class Service:
    """Keys and barriers, for threads in place of processes."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.barriers: dict[str, threading.Barrier] = {}
        self.me = threading.local()
        self.failure = "Barrier timed out. Some timed out task names:\n1\n"
        self._lock = threading.Lock()

    def received(self, folder: str) -> dict[str, str]:
        return {key.removeprefix(folder): text for key, text in self.texts.items() if key.startswith(folder)}

    def wait(self, name: str, seconds: float, processes: Sequence[int]) -> None:
        with self._lock:
            barrier = self.barriers.setdefault(name, threading.Barrier(len(processes)))
        try:
            barrier.wait(seconds)
        except threading.BrokenBarrierError:
            raise jax.errors.JaxRuntimeError(self.failure) from None


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(compat, "send", service.texts.__setitem__)
    monkeypatch.setattr(compat, "received", service.received)
    monkeypatch.setattr(compat, "forget", service.texts.pop)
    monkeypatch.setattr(compat, "wait_for_processes", service.wait)
    monkeypatch.setattr(jax, "process_index", lambda: service.me.index)
    monkeypatch.setattr(jax, "process_count", lambda: COUNT)
    monkeypatch.setattr(Channel, "used", {})
    monkeypatch.setattr(channel_module, "_register_at_exit", lambda: None)
    monkeypatch.setattr(channel_module, "_numbers", {"test": itertools.repeat(0)})
    monkeypatch.setattr(watch.WATCH, "_start", lambda: None)
    monkeypatch.setattr(watch, "LEAVES", 0.1)
    return service


def in_each(service: Service, run: Callable[[int], Any]) -> list[Any]:
    """Returns the result of each process, or its exception."""

    def own(index: int) -> Any:
        service.me.index = index
        try:
            return run(index)
        except ProcessError as error:
            return str(error)

    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(own, range(COUNT)))


def channel(seconds: float = 10, **about: str) -> Channel:
    return Channel(range(COUNT), about, "test", seconds)


def test_all_read_what_some_say_and_nothing_is_kept(service: Service) -> None:
    def run(index: int) -> Any:
        own = channel()
        silent = own.exchange(None)
        said = own.exchange(Message({"size": index}) if index else None)
        own.exchange(None)
        return silent, said

    assert in_each(service, run) == [({}, {1: {"size": 1}, 2: {"size": 2}})] * COUNT
    assert service.texts == {}


def test_an_error_of_one_is_raised_in_all_and_stays(service: Service) -> None:
    def run(index: int) -> Any:
        own = channel()
        message = Message({}, "ValueError: sample 3 is bad") if index == 1 else None
        with pytest.raises(ProcessError, match="process 1 of 3 has failed: ValueError: sample 3 is bad"):
            own.exchange(message)
        with pytest.raises(ProcessError, match="sample 3 is bad"):
            own.exchange(None)

    assert in_each(service, run) == [None] * COUNT


def test_what_must_be_equal_is_named(service: Service) -> None:
    found = in_each(service, lambda index: channel(step="b" if index == 2 else "a").exchange(Message({})))
    assert "process 2 differs from process 1 in step: b, not a" in found[1]
    assert "process 2 differs from process 0 in step: b, not a. All processes must run the same code" in found[0]
    assert "process 0 differs from process 2 in step: a, not b" in found[2]


def test_where_processes_are_must_be_equal(service: Service) -> None:
    def run(index: int) -> Any:
        own = channel()
        own.at = "call 2 of train" if index == 1 else "call 3 of train"
        return own.exchange(Message({}))

    found = in_each(service, run)
    assert "process 1 is at call 2 of train, but process 0 is at call 3 of train. All processes must call" in found[0]


def test_the_first_error_is_told_again(service: Service) -> None:
    service.me.index = 0
    own = channel()
    own.leave(KeyError("my own mistake"))
    for _ in range(2):
        with pytest.raises(ProcessError, match="an earlier call has failed: KeyError: 'my own mistake'"):
            own.exchange(None)


def test_messages_of_parts_are_apart_and_are_removed_by_the_next_part(service: Service) -> None:
    def run(index: int) -> Any:
        own = channel()
        for number in range(3):
            part = own.part("a part")
            part.name = f"test/0/parts/{number}"
            part.exchange(None)
            own.end(part)
            assert own.exchange(Message({"number": number})) == {
                process: {"number": number} for process in range(COUNT)
            }

    assert in_each(service, run) == [None] * COUNT
    assert len(service.texts) <= 2 * COUNT


def test_one_that_has_left_is_named(service: Service) -> None:
    def run(index: int) -> Any:
        own = channel()
        return own.leave() if index == 1 else own.exchange(None)

    found = in_each(service, run)
    assert found[0] == found[2]
    assert "there are no more minibatches on process 1, unlike on processes 0, 2" in found[0]


def test_the_exception_that_ends_a_process_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(index: int) -> Any:
        own = channel()
        own.exchange(None)
        return own.say_at_exit(KeyError("my own mistake")) if index == 1 else own.exchange(None)

    assert in_each(service, run)[::2] == ["process 1 of 3 has failed: KeyError: 'my own mistake'"] * 2


def test_one_that_does_not_come_is_named(service: Service) -> None:
    found = in_each(service, lambda index: None if index == 1 else channel(0.2).exchange(None))
    assert found[0] == found[2]
    assert "process 1 of 3 has not come to test within 0.2 seconds. All processes must call" in found[0]


def test_one_that_has_failed_and_ended_has_said_why(service: Service) -> None:
    service.failure = "task is set to ERROR: Task 1 heartbeat timeout."

    def run(index: int) -> Any:
        if index == 1:
            said = {"about": {}, "at": "test", "content": {}, "error": "OSError: no disk", "is_last": True}
            return compat.send("test/0/rounds/1/1", json.dumps(said))
        return channel(0.2).exchange(None)

    assert in_each(service, run)[0] == "process 1 of 3 has failed: OSError: no disk"
    del service.texts["test/0/rounds/1/1"]
    service.barriers.clear()
    killed = in_each(service, lambda index: None if index == 1 else channel(0.2).exchange(None))
    assert killed[0].startswith("process 1 of 3 has ended: it was killed, or failed")


def test_what_is_not_equal_on_a_host_is_named(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other releases, and other default dtypes."""
    service.me.index = 0
    here = channel()
    for module, name, other in ((channel_module, "__version__", "0.0.1"), (jax, "__version__", "0.9")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, other)
            there = channel()
        with pytest.raises(ProcessError, match=rf"process 1 differs from process 0 in (jitbatch|jax): {other}, not "):
            here._check_about(1, there.about)
    with jax.enable_x64(True):
        there = channel()
    with pytest.raises(ProcessError, match="process 1 differs from process 0 in floats: float64, not float32"):
        here._check_about(1, there.about)
