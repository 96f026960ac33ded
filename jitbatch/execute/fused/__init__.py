"""The fused executor: one XLA program for a whole batch, of which the schedule is data."""
