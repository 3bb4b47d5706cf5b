"""Runs a container of a pod as a kubelet would, without one: its mounts, user and capabilities.

The root file system is this machine's, as an overlay; what the pod does to it is lost.
"""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from devstack.process import StackProcess
from tests.deploy.kubernetes import ROOT, Manifest

# What the downward API says of the pod.
FIELDS: Final = {"metadata.namespace": "training", "spec.nodeName": "gpu-5"}
VARIABLE: Final = re.compile(r"\$\((\w+)\)")
# What an image has, where it lies here.
PROGRAMS: Final = {
    **{
        name: str(Path(sys.executable).parent / name)
        for name in ("rankskew", "rank-probe", "torchrun")
    },
    "train.py": str(ROOT / "demo" / "first_straggler.py"),
}


def container_process(
    spec: Manifest,
    container: Manifest,
    node: Path,
    name: str,
    user: int = 0,
    environment: Mapping[str, str] | None = None,
) -> StackProcess:
    """Return *container* of the pod *spec*, to be started on the node whose root is *node*.

    *user* is the image's; *environment* is added to that of the pod.
    """
    root = node / f"{name}.layers" / "root"
    security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    command = container.get("command") or ["rankskew", *container["args"]]
    variables = {**_environment(container), **(environment or {})}
    command = [VARIABLE.sub(lambda found: variables[found[1]], word) for word in command]
    words = [*_become(security, user), *(PROGRAMS.get(word, word) for word in command)]
    lines = _root_lines(root)
    for mount in container["volumeMounts"]:
        lines += _mount(spec, mount, node, root)
    if security.get("readOnlyRootFilesystem"):
        lines.append(f"mount -o remount,ro {root}")
    lines.append(f"exec chroot {root} {shlex.join(words)}")
    return StackProcess(
        name,
        ["unshare", "--mount", "bash", "-ec", "\n".join(lines)],
        node / f"{name}.log",
        {**variables, "PYTHONPATH": str(ROOT)},
    )


def _environment(container: Manifest) -> dict[str, str]:
    return {
        each["name"]: each["value"] if "value" in each else FIELDS[_field(each)]
        for each in container["env"]
    }


def _field(variable: Manifest) -> str:
    return str(variable["valueFrom"]["fieldRef"]["fieldPath"])


def _root_lines(root: Path) -> list[str]:
    """Return shell lines that make the container's root, in a mount namespace of its own."""
    layers = root.parent
    overlay = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
    return [
        "mount --make-rprivate /",
        f"mkdir -p {layers} && mount -t tmpfs tmpfs {layers}",
        f"mkdir {layers}/upper {layers}/work {root}",
        f"mount -t overlay overlay -o {overlay} {root}",
        f"chmod o+x {root}/root",  # Of the overlay: the interpreter may be installed there.
        *(f"mount --rbind /{each} {root}/{each}" for each in ("proc", "dev", "sys")),
    ]


def _mount(spec: Manifest, mount: Manifest, node: Path, root: Path) -> list[str]:
    """Return shell lines that mount a volume."""
    [volume] = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    target = f"{root}{mount['mountPath']}"
    lines = [f"mkdir -p {target}", f"mount --bind {_source(volume, node)} {target}"]
    return [*lines, *([f"mount -o remount,bind,ro {target}"] if mount.get("readOnly") else [])]


def _source(volume: Manifest, node: Path) -> Path:
    """Return the directory that the kubelet would mount, made as it makes it."""
    if "emptyDir" in volume:
        path = node / "volumes" / str(volume["name"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path
    asked = volume["hostPath"]
    if asked["path"] == "/sys":
        return Path("/sys")
    path = node / str(asked["path"]).lstrip("/")
    if asked["type"] == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    assert path.is_dir(), f"hostPath type check failed: {path} is not a directory"
    return path


def _become(security: Manifest, user: int) -> list[str]:
    """Return the command that gives up all but the user and the capabilities of the pod."""
    uid = security.get("runAsUser", user)
    added = security.get("capabilities", {}).get("add", [])
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in added)])
    final = security.get("allowPrivilegeEscalation") is False
    return [
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *(f"--bounding-set={kept}", f"--inh-caps={kept}"),
        *(["--no-new-privs"] if final else []),
        "--",
    ]
