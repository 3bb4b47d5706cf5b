"""The dashboard of the exporters, the probes and the rules."""
