"""Text that others chose, made fit for a terminal, a log and a label."""


def printable(text: str, most: int | None = None) -> str:
    """Return at most *most* characters of *text*, with ? for each that cannot be printed."""
    return "".join(each if each.isprintable() else "?" for each in text[:most])
