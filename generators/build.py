"""Generates what pages list: metrics, flags, alerts, measured figures, how the packages depend.

`python -m generators.build` writes the pages; `--check` exits 1 if a committed one is stale.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from generators.files import ROOT, text_of, write_or_check
from generators.listed import (
    alert_rules,
    commands,
    compose_alertmanager,
    configuration,
    faults,
    house,
    metrics,
    playbook,
    private_names,
)
from generators.markdown import fill
from generators.measured import (
    accuracy,
    diagnose,
    evidence,
    false_names,
    gpu,
    overhead,
    robustness,
    scale,
    torch_versions,
)
from rankskew.diagnose.advice import advice

Part = Callable[[], str]

# Every file that is generated as a whole.
WHOLE: Final[Mapping[str, Part]] = {
    "docs/metrics.md": metrics.page,
    "docs/configuration.md": configuration.page,
    "deploy/compose/alertmanager.yaml": compose_alertmanager.configuration,
}
# Every page with generated parts, by their markers.
PARTS: Final[Mapping[str, Mapping[str, Part]]] = {
    "CONTRIBUTING.md": {"house": house.picture},
    "README.md": {"evidence": evidence.evidence},
    "alerts/README.md": {
        "alerts": alert_rules.alerts_table,
        "files": alert_rules.files_table,
        "thresholds": alert_rules.thresholds_table,
    },
    "docs/README.md": {"commands": commands.commands},
    "docs/accuracy.md": {
        "faults": accuracy.faults,
        "together": accuracy.together,
        "false_names": false_names.false_names,
        "latency": accuracy.latency,
        "ways": accuracy.ways,
    },
    "docs/compatibility.md": {
        "versions": torch_versions.versions,
        "private_names": private_names.private_names,
    },
    "docs/diagnose.md": {
        "planted": diagnose.planted,
    },
    "docs/gpu.md": {
        "gpu_stages": gpu.stages,
        "gpu_verdict": gpu.verdict,
        "gpu_wraps": gpu.wraps,
        "gpu_ranks": gpu.ranks,
    },
    "docs/hardware.md": {"gpu_readings": gpu.readings},
    "docs/operating.md": {
        "restarts": partial(robustness.measured, "restarts"),
        "faults": partial(robustness.measured, "faults"),
    },
    "docs/overhead.md": {
        "overhead": overhead.overhead,
        "overhead_gpu": overhead.on_gpu,
        "join": overhead.join,
        "scrape": overhead.scrape,
    },
    "docs/playbook/README.md": {"causes": playbook.causes},
    **{
        f"docs/playbook/{cause}.md": {"advice": partial(playbook.summary, cause)}
        for cause in advice()
    },
    "docs/scale.md": {
        "scale_outcome": scale.outcome,
        "scale": scale.scale,
        "scale_rules": scale.rules,
        "panels_outcome": scale.panels_outcome,
        "panels": scale.panels,
    },
    "docs/security.md": {
        "hostile": partial(robustness.measured, "hostile"),
        "slow_clients": robustness.slow_clients,
    },
    "docs/simulate.md": {"faults": faults.faults},
}


def texts() -> dict[Path, str]:
    """Return what each generated page should be."""
    new = {ROOT / name: generate() for name, generate in WHOLE.items()}
    for name, parts in PARTS.items():
        filled = {marker: part() for marker, part in parts.items()}
        new[ROOT / name] = fill(text_of(ROOT / name), filled)
    return new


def main() -> int:
    """Write the pages, or with --check print which are stale."""
    return write_or_check(texts(), "make docs")


if __name__ == "__main__":
    sys.exit(main())
