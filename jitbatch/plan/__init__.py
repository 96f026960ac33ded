"""Plans: from a call to something that runs again and again, can be saved, split over devices, and made ahead.

In: a call of a decorated function: shared arguments and samples.
Out: a `Plan`, a pytree of integer tables and input rows with a static part, and the results of running it.
Invariants: plans with equal static parts run by one compiled program; a plan's inputs are constants.
Imports: all stages above, `tune` among them.
"""
