"""A fuzzer of per-sample programs: `python -m fuzz`, or `make fuzz`.

A random program is Python text, made from a sequence of choices (`choices`): cells (`cells`), a way to walk over a
sample (`walks`), samples (`samples`), and how the batch is run (`configurations`). The text is executed as it is
printed, and each configuration's values and gradients are compared with the plain loop (`compare`, `trials`). A failure
is made smaller by making its choices fewer (`shrink`).
"""

import platform

QUICK_COMPILATION = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
        *(["--xla_cpu_max_isa=AVX"] if platform.machine().lower() in ("x86_64", "amd64") else []),
    )
)
"""`XLA_FLAGS` for programs that are compiled to be run once or twice: compilation takes a quarter of the time.

Without the last one a product and a sum are one instruction in some places and two in others. A term that is computed
twice then differs from itself, and JAX's own derivative of a maximum is infinite."""
