"""The reference accounting of steps and runs, and statistics of windows, in plain Python."""
