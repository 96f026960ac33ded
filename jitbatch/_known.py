"""What is known of the costs on the running backend: calibrated earlier and stored on disk, or else assumed."""

import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Hashable
from dataclasses import asdict, fields
from pathlib import Path

import jax

from jitbatch._caches import Cache
from jitbatch._cost import Costs, default_costs
from jitbatch._version import __version__

_known = Cache(16)
"""By what they were measured on, and what decides where they are stored."""

_PLACES = ("JITBATCH_CACHE_DIR", "LOCALAPPDATA", "XDG_CACHE_HOME", "HOME")


def known_costs() -> Costs:
    """The costs on the running backend: those of the last `calibrate()`, also of an earlier process, or defaults."""
    where = measured_on()
    return _known.get_or_make(_key(where), lambda: _read(path_of(where), where) or default_costs(where["backend"]))


def store_costs(costs: Costs) -> None:
    """Use these costs from now on, also in later processes if there is a place to write to."""
    where = measured_on()
    path = path_of(where)
    _known.discard(_key(where))
    _known.put(_key(where), costs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump({**where, "costs": asdict(costs)}, file, indent=1)
        os.replace(file.name, path)  # readers see the old file or the new one, never a part
    except OSError:
        pass  # a disk that cannot be written to only means that later processes do not know


def measured_on() -> dict[str, str]:
    """What costs depend on."""
    return {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "jitbatch": __version__,
    }


def _key(where: dict[str, str]) -> Hashable:
    return *where.values(), *map(os.environ.get, _PLACES)


def path_of(where: dict[str, str]) -> Path:
    name = "-".join("".join(c if c.isalnum() or c == "." else "_" for c in part) for part in where.values())
    return cache_directory() / f"costs-{name}.json"


def cache_directory() -> Path:
    """`$JITBATCH_CACHE_DIR`, or a folder in the user's cache directory."""
    given = os.environ.get("JITBATCH_CACHE_DIR")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "jitbatch"


def _read(path: Path, where: dict[str, str]) -> Costs | None:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return None if not path.is_file() else _refuse(path)
    try:
        stored = json.loads(text)
        costs = Costs(**{field.name: float(stored["costs"].pop(field.name)) for field in fields(Costs)})
        fits = not stored.pop("costs") and stored == where
        sound = all(math.isfinite(cost) and cost > 0 for cost in asdict(costs).values())
    except (ValueError, TypeError, KeyError, AttributeError):
        return _refuse(path)
    return costs if fits and sound else _refuse(path)


def _refuse(path: Path) -> None:
    warnings.warn(
        f"jitbatch: {path} does not hold the costs of this backend and is not used; `jitbatch.calibrate()` replaces it",
        stacklevel=2,
    )
