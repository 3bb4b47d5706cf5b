"""`rank-probe bench-collectives`: how fast the ranks reach one another, and which link is slow."""
