"""A simulated fleet on real HTTP, to try dashboards and alerts without a GPU."""
