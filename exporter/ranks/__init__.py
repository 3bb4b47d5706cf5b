"""What the ranks of this node reported last, and what the node knows of each job by that."""
