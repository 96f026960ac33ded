"""Plans: from a call to a `Plan`, which can be run many times, saved, split over devices, and made ahead of time.

In: a call of a decorated function: shared arguments and samples.
Out: a `Plan`, a pytree of integer tables and input rows with a static part, and the results of running it.
Invariants: one compiled program runs all plans with equal static parts; a plan's inputs are constants.
Imports: all stages above, `tune` among them.
"""
