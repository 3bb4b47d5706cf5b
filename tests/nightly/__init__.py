"""What is slow and seldom broken by a change; `make test-nightly` runs it in full length."""
