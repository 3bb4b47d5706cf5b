"""Which ranks of a job are late, in which stage, since when, at what cost: pure functions."""
