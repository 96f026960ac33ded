"""The methods that `@jitbatch` adds to a function.

In: the function of one sample, and the options of the decorator.
Out: the function itself, callable as before, with `.batch`, `.plan`, `.plans`, `.capacity`, `.explain`, `.check`,
`.serve`, `.cache_info`, and `.rollout` if it is asynchronous.
Invariants: the name, signature, docstring and attributes of the function stay. All methods take its own arguments.
Imports: all stages above; each method calls the stage that does its work.
"""
