"""Which core plans: the compiled one where there is one, unless another is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from core.cores import CORES

from jitbatch.core import choice

WITHOUT = """
import sys, warnings
sys.modules["jitbatch.core.native"] = None  # as if it was not built
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from jitbatch.core import choice
print(choice.name(), [w.category.__name__ for w in caught])
"""

OUTDATED = WITHOUT.replace("None  # as if it was not built", "types.SimpleNamespace(version=0)").replace(
    "import sys,", "import sys, types,"
)


def run(code: str, asked: str) -> str:
    environment = {"JITBATCH_CORE": asked, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_without_the_compiled_core_a_warning_says_so_once() -> None:
    assert run(WITHOUT, "") == "python ['SlowPlanningWarning']"
    assert run(WITHOUT, "python") == "python []"
    assert run(WITHOUT, "native").startswith("ImportError: JITBATCH_CORE is 'native', but jitbatch was installed")
    assert "it can be 'native' or 'python'" in run(WITHOUT, "fast")


def test_an_outdated_compiled_core_is_not_used() -> None:
    assert run(OUTDATED, "") == "python ['SlowPlanningWarning']"
    message = "ImportError: JITBATCH_CORE is 'native', but the compiled core of jitbatch is of another version"
    assert run(OUTDATED, "native").startswith(message)


def test_another_core_inside() -> None:
    for core in CORES:
        with choice.using(core):
            assert choice.name() == core
    with pytest.raises(ValueError, match="there is no core 'fast'"), choice.using("fast"):
        pass
