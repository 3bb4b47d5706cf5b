#!/usr/bin/env python3
"""Stands in for scontrol and sinfo: nodes in a JSON file, shown and changed as Slurm does it."""

import json
import os
import re
import sys
from pathlib import Path

FILE = Path(os.environ["FAKE_SLURM"])


def main(program: str, arguments: list[str]) -> int:
    site = json.loads(FILE.read_text())
    site["asked"].append([program, *arguments])
    status = sinfo(site) if program == "sinfo" else scontrol(site, arguments)
    new = FILE.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(site))
    new.replace(FILE)  # The test reads it meanwhile.
    return status


def sinfo(site: dict) -> int:  # type: ignore[type-arg] # It runs without our packages.
    for name, node in site["nodes"].items():
        for partition in node["partitions"]:
            print(f"{name}|{partition}")
    return 0


def scontrol(site: dict, arguments: list[str]) -> int:  # type: ignore[type-arg]
    if arguments[:3] == ["--oneliner", "show", "node"]:
        node = site["nodes"].get(arguments[3])
        if node is None:
            print(f"Node {arguments[3]} not found")
            return 1
        given = f"   Reason={node['reason']} [slurm@2026-11-26T19:00:00]" if node["reason"] else ""
        print(
            f"NodeName={arguments[3]} Arch=x86_64 State={node['state']} ThreadsPerCore=1 {given} "
        )
        return 0
    wanted = dict(each.split("=", 1) for each in arguments[1:])
    assert arguments[0] == "update"
    assert re.fullmatch(r"\w+", wanted["nodename"])
    node = site["nodes"][wanted["nodename"]]
    if wanted["state"] == "drain":
        assert wanted["reason"], "Slurm refuses to drain without a reason"
        node.update(state=f"{node['state']}+DRAIN", reason=wanted["reason"])
    else:
        assert wanted["state"] == "undrain"
        node.update(state=node["state"].removesuffix("+DRAIN"), reason="")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
