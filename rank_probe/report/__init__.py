"""What a rank reports to its node's exporter, and what it writes to a trace."""
