"""Tables of what the code has: commands, metrics, flags, alerts, causes, faults."""
