"""One rank of `python -m benchmarks.audit`: it plants what is meant for it, then audits."""

import os
import sys
from pathlib import Path

from benchmarks.audit.plants import PLANTS, Plant, node_of
from rank_probe.__main__ import main


def prepare(rank: int, plants: list[Plant]) -> None:
    """Change this process as *plants* say."""
    for plant in plants:
        if rank in plant.ranks:
            os.environ |= plant.variables
            if plant.do is not None:
                plant.do()


if __name__ == "__main__":
    folder, names, *options = sys.argv[1:]
    rank = int(os.environ["RANK"])
    prepare(rank, [plant for plant in PLANTS if plant.name in names.split(";")])
    node = Path(folder) / node_of(rank)
    paths = ["--path.procfs", str(node / "proc"), "--path.sysfs", str(node / "sys")]
    sys.exit(main(["audit", "--json", *paths, *options]))
