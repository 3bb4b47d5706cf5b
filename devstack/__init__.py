"""The real programs that the demo, tests and benchmarks run."""
