"""The events of the ranks' lives: as lines of a file, and the last one of each rank."""
