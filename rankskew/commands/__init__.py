"""The command line of each command."""
