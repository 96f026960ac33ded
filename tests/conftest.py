"""Every graph, schedule and plan made in the tests is verified."""

import gc
import os
from pathlib import Path

import pytest
from fuzz import QUICK_COMPILATION

# The tests compile thousands of tiny kernels and run each once or twice; what was compiled before is read from disk.
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

from jitbatch.util import passes

VERIFIED = passes.verified()  # held: it ends with the generator
VERIFIED.__enter__()

collect_ignore = ["mesh_steps.py", "meshes.py", "process_steps.py"]  # scripts for processes of their own


@pytest.fixture(autouse=True, scope="module")
def _collections_are_short() -> None:
    """Exempts what earlier modules left from garbage collection: a process of the tests holds thousands of programs."""
    gc.collect()
    gc.freeze()
