"""Every graph, schedule and plan made in the tests is verified."""

import os

# The tests compile thousands of tiny kernels and run each once or twice.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

# Nothing in the tests depends on what was measured on some machine.
os.environ["JITBATCH_CACHE_DIR"] = os.devnull

import jitbatch._context

jitbatch._context.verify = True
