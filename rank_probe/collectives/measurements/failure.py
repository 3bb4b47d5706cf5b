"""Why nothing could be measured."""


class CannotMeasure(Exception):
    """One sentence on what is wrong and what to do."""
