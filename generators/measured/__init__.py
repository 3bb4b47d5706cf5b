"""Tables of what the benchmarks have measured."""
