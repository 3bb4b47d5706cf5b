"""Lists of CPUs as the kernel writes them, such as 0-3,8."""

from typing import Final

# The most that Linux can be built for.
MOST_CPUS: Final = 8192


def cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of *text*, ascending and below MOST_CPUS; none if it is no such list."""
    cpus: set[int] = set()
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        cpus.update(range(int(first), min(int(last or first) + 1, MOST_CPUS)))
    return tuple(sorted(cpus))
