"""How what an executor runs is saved: to save plans of a further executor, write a `ProgramFormat` of it and add it to
`FORMATS` in `plan/saved/plans`."""

from collections.abc import Callable
from typing import Any, NamedTuple


class ProgramFormat(NamedTuple):
    """A program in a saved plan.

    Attributes:
        field: the field of `Content` that holds it.
        save: from a program and `Names` to data with names in place of kinds.
        load: from a checked `Content`, what puts kinds in the place of names, sizes, arenas and `Tables` to a program.
        check_sizes: refuses a `Content` with sizes that no plan has.
        check_tables: refuses the tables of a plan that are not those of its content.
    """

    field: str
    save: Callable[[Any, Any], Any]
    load: Callable[..., Any]
    check_sizes: Callable[[Any], None]
    check_tables: Callable[[Any, Any, Any], None]
