"""A guest's manners: errors stay inside, training goes first, what is replaced is put back."""
