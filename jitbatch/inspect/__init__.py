"""Reports on plans: tables, advice, timing, and comparison with the plain loop.

In: a `Plan`, and the function that made it.
Out: a `Report` as data, text or a page; a `Check`.
Invariants: this stage changes no plan and no result.
Imports: all stages above.
"""
