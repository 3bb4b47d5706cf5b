"""The dashboard of one rank of a job."""
