"""What ways to check the exporter's health cost."""

from docs.figures import result, rows
from docs.markdown import table


def costs() -> str:
    """Return the CPU time of a check in each way, and of the exporter."""
    cells = [(row["what"], f"{row['median']:.1f} ms") for row in rows("health_check")]
    cpus = result("health_check")["machine"]["cpus"]
    return f"On {cpus} CPUs.\n\n{table(('what', 'CPU time, median'), cells)}"
