"""From one sample to its graph: the function runs once for each new structure, on abstract arrays.

In: a function, its arguments, and samples.
Out: a `Graph` for each sample; samples of one structure share it (`Context.graphs_of`).
Invariants: nothing depends on the values of arrays; a call of a decorated function becomes one or more nodes.
Imports: `util`, `core`, `ir`.
"""
