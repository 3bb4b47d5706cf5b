"""The demo: a real training with a planted straggler, in front of the real stack."""
