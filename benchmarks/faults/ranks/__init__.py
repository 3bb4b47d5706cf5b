"""The ranks that train through every fault: their delays, and what they count."""
