"""What a person would write by hand in plain JAX, without jitbatch: the benchmarks' contestants."""
