"""The process that talks to the driver: the node's GPUs, their errors, and calls that may hang."""
