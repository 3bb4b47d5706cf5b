"""The environment variables that an audit compares or looks at, without their secrets."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from rank_probe.process.runtime import COMPARED_PREFIXES, NOT_COMPARED
from rank_probe.wire.text import printable

# What the checks look at in each rank's own environment.
LOOKED_AT: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "OMP_NUM_THREADS",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
)
# The check of the order of devices tells more about it than that it differs.
_TOLD_ELSEWHERE: Final = frozenset({"CUDA_DEVICE_ORDER"})
HIDDEN: Final = "hidden "
MOST_VARIABLES: Final = 256
MOST_CHARACTERS: Final = 120
_SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|(?:^|_)KEY(?:_|$)|COMM_ID")
_SECRET_VALUE: Final = re.compile(r"://[^/@\s]*@")


def compared(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that should be the same on every rank."""
    names = sorted(
        name
        for name in environment
        if name.startswith(COMPARED_PREFIXES) and name not in NOT_COMPARED | _TOLD_ELSEWHERE
    )
    return {name: shown(name, environment[name]) for name in names[:MOST_VARIABLES]}


def looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that checks look at."""
    return {name: environment[name] for name in LOOKED_AT if name in environment}


def shown(name: str, value: str) -> str:
    """Return *value*; a digest that is good for comparisons if it may be secret or is long."""
    digest = hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:8]
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return f"{HIDDEN}{digest}"
    readable = printable(value)
    if len(readable) > MOST_CHARACTERS or readable != value:
        return f"{readable[:MOST_CHARACTERS]}... ({digest})"
    return readable
