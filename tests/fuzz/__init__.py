"""A fuzzer of per-sample programs: `python -m fuzz`, or `make fuzz`.

A random program is Python text, made from a sequence of choices (`choices`): cells (`cells`), a way to walk over a
sample (`walks`), samples (`samples`), and how the batch is run (`configurations`). The text is executed as it is
printed, and each configuration's values and gradients are compared with the plain loop (`compare`, `trials`). A failure
is made smaller by making its choices fewer (`shrink`).
"""

QUICK_COMPILATION = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""`XLA_FLAGS` for programs that are compiled to be run once: XLA does what it always does, LLVM does little."""

CHEAP_COMPILATION = " ".join(
    (
        QUICK_COMPILATION,
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_cpu_max_isa=SSE4_2",
    )
)
"""`XLA_FLAGS` for random programs, without 16-bit floats: compilation takes a third of the time.

Without the last one a product and a sum are one instruction in some places and two in others. A term that is computed
twice then differs from itself, and JAX's own derivative of a maximum is infinite."""
