"""Planning on plain integers: loops over the nodes of a minibatch, in C++ or, without a compiled core, in Python.

In: integers in lists and arrays: recorded rows, recipes of types, the sizes of a program.
Out: numbered graphs, typed graphs, a joined batch with equal calls merged, its rounds, and the tables of a program.
Invariants: `native` (C++, in the folder `native/` of the sources) and `reference` (Python) return equal results.
Imports: `util`.
"""
