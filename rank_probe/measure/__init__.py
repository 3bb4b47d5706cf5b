"""Turns the events that hooks record into the time of each stage in each step."""
