"""The saved form of an executor's programs.

To save plans of another executor, write a `ProgramFormat` and add it to `FORMATS` in `plan/saved/plans`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class ProgramFormat(NamedTuple):
    """The functions that save and load the programs of an executor.

    Attributes:
        field: the field of `Content` for the program.
        save: from a program and `Names` to data with names in place of kinds.
        load: from a checked `Content`, a function that replaces names by kinds, `Sizes`, arenas and `Tables` to a
            program.
        check_sizes: raises `PlanError` for a `Content` with sizes that no plan has.
        check_tables: raises `PlanError` if the tables of a plan do not fit its `Content`.
    """

    field: str
    save: Callable[[Any, Any], Any]
    load: Callable[..., Any]
    check_sizes: Callable[[Any], None]
    check_tables: Callable[[Any, Any, Any], None]
