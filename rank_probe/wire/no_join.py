"""Why the ranks of a job cannot compare their steps with one another, as told to its user."""

from typing import Final

FILE_STORE, HASH_STORE, OTHER_STORE = "file_store", "hash_store", "other_store"
MPI_BACKEND, FAKE_BACKEND, OFF = "mpi_backend", "fake_backend", "off"

# Each is followed by what is done instead.
SENTENCES: Final = {
    FILE_STORE: "its ranks met through a file (file:// or a FileStore), which keeps all that is "
    "ever written to it",
    HASH_STORE: "its process group is on a HashStore, which only its own process can read",
    OTHER_STORE: "its process group is on a store that is not a TCPStore",
    MPI_BACKEND: "its process group is MPI's, which has no store",
    FAKE_BACKEND: "its process group has the fake backend, whose ranks never meet",
    OFF: "RANK_PROBE_JOIN=0 turns that off",
}


def why_not_joined(obstacle: str) -> str:
    """Return a clause that says why; *obstacle* may be one of a newer release."""
    return SENTENCES.get(obstacle, f"the probe says {obstacle}")
