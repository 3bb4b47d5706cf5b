"""What the commands ask of other programs, and what they say if that fails."""
