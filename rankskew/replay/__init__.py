"""`rankskew replay`: runs the judge over recorded traces."""
