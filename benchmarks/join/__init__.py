"""What the per-step join costs."""
