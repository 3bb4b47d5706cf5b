"""The faults that a simulated fleet can have."""
