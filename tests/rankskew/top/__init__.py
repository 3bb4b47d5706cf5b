"""`rankskew top`: what it reads, what it shows, and what it says if it cannot."""
