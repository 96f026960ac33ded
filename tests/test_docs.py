"""The code in the README runs."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_the_readme_runs_and_compiles_once() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), names)
    assert names["out"].shape == (3, 2)  # type: ignore[attr-defined]
    assert names["step"]._cache_size() == 1  # type: ignore[attr-defined]
