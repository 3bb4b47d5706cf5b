"""From the events that hooks note to the time of each stage in each step."""
