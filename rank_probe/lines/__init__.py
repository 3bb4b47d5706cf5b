"""What the training thread of a late rank does: the user's line of code, and its state there."""
