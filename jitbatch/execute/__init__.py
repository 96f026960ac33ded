"""From a scheduled batch to a program and its tables, and running them: one module for each executor.

In: an `Analysis` and a `Policy`, and the least sizes that the program is to have.
Out: `Lowered`: a static, hashable program, and the integer tables that it reads.
Invariants: a row is written before it is read; padding is never read, and no derivative passes through it.
Imports: `util`, `core`, `ir`, `record`, `batch`, `schedule`.
"""
