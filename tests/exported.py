"""Run by `test_export.py` in a process of its own: calls exported programs with plans that are made here."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import jax
from jax import export
from saved import cases, data_of


def main(directory: Path) -> None:
    saved = pickle.loads((directory / "programs").read_bytes())
    results = {}
    known = cases()
    for name, (program, pickled) in saved.items():
        case = known[name]
        exported = export.deserialize(bytearray(program))
        plan = pickle.loads(pickled)
        results[name] = []
        for own in (plan, case.plan(like=plan), case.plan()):
            result: Any = exported.call(case.shared, own, case.further)
            result = result.to_list() if hasattr(result, "to_list") else result
            results[name].append(jax.tree.map(data_of, result))
    (directory / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
