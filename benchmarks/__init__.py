"""What rankskew costs: each benchmark prints a table and writes JSON into results/."""
