"""`rank-probe audit`: could this launch be slow, or hang, because of how it is set up?"""
