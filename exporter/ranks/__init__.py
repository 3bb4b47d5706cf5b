"""The last reports of this node's ranks, and what the node knows about each job from them."""
