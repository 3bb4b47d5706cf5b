"""What the audit checks, a file for each subject; they are listed in catalog.py."""
