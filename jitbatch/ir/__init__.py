"""The data between stages: cells (canonical jaxprs), kinds, and the graph of one sample.

In: jaxprs and integers, from the recorder.
Out: `Cell`, `Kind`, `Graph`, each immutable, printable and, where it has structure, with a `verify`.
Invariants: equal entries have equal ids in the `Tables` of a function, so a batch joins graphs without translation.
Imports: `util`, `core`.
"""
