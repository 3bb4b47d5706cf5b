"""Tests of the integrations, each on its real framework with gloo ranks."""
