"""Says why a job is slow, and what a change did to it."""
