"""Every graph, schedule and plan made in the tests is verified."""

import os

from fuzz import QUICK_COMPILATION

# The tests compile thousands of tiny kernels and run each once or twice.
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)

# Nothing in the tests depends on what was measured on some machine.
os.environ["JITBATCH_CACHE_DIR"] = os.devnull

import jitbatch._context

jitbatch._context.verify = True
