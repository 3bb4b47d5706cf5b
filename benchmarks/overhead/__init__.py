"""What the probe adds to a step, beside other tools."""
