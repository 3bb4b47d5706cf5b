"""The dashboard of all jobs and nodes."""
