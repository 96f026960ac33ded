"""What a plan does, for people: reports, advice, timing, comparison with the plain loop.

In: a `Plan`, and the function that made it.
Out: a `Report` as data, text or a page; a `Check`.
Invariants: nothing here changes what is planned or run.
Imports: all stages above.
"""
