"""What `rankskew diagnose` says of every planted fault."""
