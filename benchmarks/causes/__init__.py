"""Real causes planted in a real job: is the first that is told right?"""
