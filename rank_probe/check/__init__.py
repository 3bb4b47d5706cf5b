"""`rank-probe check`: could a rank that starts here report, and would anybody see it?"""
