"""The fused executor: one XLA program runs a whole batch. The schedule is data of this program."""
