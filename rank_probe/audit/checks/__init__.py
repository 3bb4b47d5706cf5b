"""What the audit checks, one file for each subject; catalog.py lists them."""
