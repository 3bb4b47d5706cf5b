"""`rankskew replay`: recorded traces, judged again."""
