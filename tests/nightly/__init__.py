"""Slow tests that a change seldom breaks; `make test-nightly` runs them at full length."""
