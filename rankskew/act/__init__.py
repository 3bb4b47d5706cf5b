"""Offers the verdict on a node to its scheduler: confirmed, limited, written down, and undone."""
