"""Memory between steps: kept where that is asked for, and said where it is not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import pytest

from jitbatch import jitbatch
from jitbatch.util import malloc

FAULTS = """
import ctypes, resource
from jitbatch import keep_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(100_000_000)))
    libc.memset(block, 1, ctypes.c_size_t(100_000_000))
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
given_back = faults()
done = keep_memory()
faults()
print(done, given_back, faults())
"""


@pytest.mark.skipif(malloc._mallopt() is None, reason="the C library is not glibc")
def test_a_block_that_is_kept_is_not_faulted_in_again() -> None:
    """In a process of its own, since it is a setting of the process."""
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    done, given_back, kept = ran.stdout.split()
    assert done == "True"
    assert int(given_back) > 20  # of huge pages, if not thousands of small ones
    assert int(kept) < 5


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(malloc, "_kept", False)
    assert not malloc.keep_memory()
    assert malloc.remedy(2**40) is None


@pytest.mark.parametrize(
    ("kept", "width", "executor", "said"),
    [
        (False, 2**10, "fused", None),
        (False, 700_000, "fused", "keep_memory"),
        (False, 700_000, "dispatch", None),  # whose steps do not share one block
        (True, 700_000, "fused", None),
        (True, 2**24, "fused", "hugetlb"),
    ],
)
def test_advice(monkeypatch: pytest.MonkeyPatch, kept: bool, width: int, executor: Any, said: str | None) -> None:
    monkeypatch.setattr(malloc, "_kept", kept)
    monkeypatch.setattr(malloc, "_mallopt", lambda: lambda *_: 1)

    def fun(w: Any, x: Any) -> Any:
        return jnp.tanh(w * x)

    report = jitbatch(fun, executor=executor).plan(jnp.ones(width), [jnp.zeros(width)]).explain()
    advice = [str(one) for one in report.advice]
    assert bool(advice) == (said is not None), report.memory
    assert all(str(said) in one for one in advice)
