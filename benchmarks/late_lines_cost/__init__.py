"""What it costs a rank that its stack is sampled."""
