"""What the playbook's pages repeat of alerts/advice.yaml."""

from generators.markdown import table
from rankskew.diagnose.advice import advice


def causes() -> str:
    """Return a row for each cause, with what an alert says to do first."""
    rows = (
        (f"[{entry.cause}]({entry.cause}.md)", entry.text, entry.first)
        for entry in advice().values()
    )
    return table(("cause", "what it is", "first"), rows)


def summary(cause: str) -> str:
    """Return what the cause is, what to do first, and what shows that it is over."""
    entry = advice()[cause]
    first = entry.first[0].upper() + entry.first[1:]
    text = entry.text[0].upper() + entry.text[1:]
    return f"{text}.\n\n- **First:** {first}.\n- **Over when:** {entry.proof}"
