"""The words of the `rank-probe` command."""
