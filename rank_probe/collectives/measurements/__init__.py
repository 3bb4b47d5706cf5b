"""What the ranks measure together: collectives, and messages between two of them."""
