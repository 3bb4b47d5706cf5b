"""`rankskew nodes`: which nodes and GPUs jobs waited for, over weeks."""
