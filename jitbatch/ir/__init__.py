"""What the stages hand to each other: cells (canonical jaxprs), kinds, and the graph of one sample.

In: jaxprs and integers, from the recorder.
Out: `Cell`, `Kind`, `Graph`, each immutable, printable and, where it has structure, with a `verify`.
Invariants: equal things have equal ids in the `Tables` of a function, so graphs are joined without translation.
Imports: `util`.
"""
