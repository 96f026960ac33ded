"""The G2 set: its size, a known geometry and a known energy."""

import importlib
import importlib.util

import numpy as np
import pytest

from jitbatch.data import read_g2

needs_ase = pytest.mark.skipif(
    importlib.util.find_spec("ase") is None, reason="the G2 set needs the package ase: pip install '.[molecules]'"
)


@needs_ase
def test_the_set() -> None:
    elements, names, molecules = read_g2()
    assert len(names) == len(molecules) == 148
    assert len(elements) == 14
    water = molecules[names.index("H2O")]
    assert [elements[number] for number in water.species] == ["O", "H", "H"]
    assert water.bonds.value == ((0, 1), (0, 2))
    assert water.energy == pytest.approx(10.1, abs=0.1)  # 232 kcal/mol without zero-point energy
    assert {len(one.species) for one in molecules} == set(range(2, 15))
    bonded = [set(np.ravel(one.bonds.value).tolist()) == set(range(len(one.species))) for one in molecules]
    assert all(bonded)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"the G2 set is in the package `ase`.*pip install 'jitbatch\[molecules\]'"):
        read_g2()
