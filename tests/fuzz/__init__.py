"""A fuzzer of per-sample programs: `python -m fuzz`, or `make fuzz`.

A random program is Python text, made from a sequence of choices (`choices`): cells (`cells`), a way to walk over a
sample (`walks`), samples (`samples`), and how the batch is run (`configurations`). The text is executed as it is
printed, and each configuration's values and gradients are compared with the plain loop (`compare`, `trials`). A failure
is made smaller by making its choices fewer (`shrink`).
"""
