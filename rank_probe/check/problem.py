"""Why ranks could not report from here."""


class CannotReport(Exception):
    """One sentence on what is wrong and what to do; *may_pass* if it may be enough to wait."""

    def __init__(self, sentence: str, may_pass: bool = False) -> None:
        super().__init__(sentence)
        self.may_pass = may_pass
