"""Serving inside a process: a thread batches the requests of many callers.

In: a decorated function, its shared arguments, and requests, each of one sample.
Out: a `Server`, and a future for each request with the result of the plain function for its sample.
Invariants: an accepted request is answered, with a result or an exception; the number of waiting requests is bounded.
Imports: all stages above.
"""
