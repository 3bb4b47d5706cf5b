"""The demo: a real training with a planted straggler, and the real stack that names it."""
