"""Executors: from an analysed batch to a program and its tables, and the execution of programs.

In: an `Analysis`, a `Policy`, and the least sizes of the program.
Out: a `Lowered`: a static, hashable program, and its integer tables.
Invariants: a row is written before it is read; padding is never read, and no derivative passes through it.
Imports: `util`, `core`, `ir`, `record`, `batch`, `schedule`.
"""
