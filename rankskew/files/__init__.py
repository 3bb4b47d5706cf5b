"""`rankskew files`: what belongs to this release, written out."""
