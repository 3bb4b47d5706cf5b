"""Makes the release files in dist/. Two builds of one commit are equal byte for byte.

    make release                the files of a release: the CHANGELOG must have a section for it
    make release RELEASE=dev    the same from work that is not released, or not even committed

Only files that git tracks get in (for `dev` also those that it would), and both wheels are built
from the sdist. The platform wheel is equal where Python and compiler are; the rest is everywhere.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from pyproject_hooks import quiet_subprocess_runner

ROOT: Final = Path(__file__).resolve().parents[1]
VERSION: Final = runpy.run_path(str(ROOT / "rank_probe" / "version.py"))["__version__"]
# Directories of deploy/ that go into the archive beside what `rankskew files` writes.
DEPLOYED: Final = ("kubernetes",)
CHART: Final = "deploy/helm"
# What is made for the archive only, by Helm: the one that scripts/setup.sh fetches comes first.
MANIFESTS: Final = "scripts/kubernetes.sh"
PROGRAMS: Final = f"{ROOT / '.node' / 'helm'}:{os.environ.get('PATH', os.defpath)}"
CONSTRAINTS: Final = "scripts/release-constraints.txt"


def main() -> int:
    """Write the release files; 1 with a sentence if this tree cannot be released."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where to write, such as dist")
    parser.add_argument("--dev", action="store_true", help="build what is not ready for a release")
    options = parser.parse_args()
    problem = None if options.dev else why_not()
    if problem:
        print(f"release: {problem}, or build with RELEASE=dev", file=sys.stderr)
        return 1
    os.environ.setdefault("SOURCE_DATE_EPOCH", git("log", "-1", "--format=%ct").strip())
    try:
        made = release(options.directory.resolve(), ["--others"] if options.dev else [])
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.output or b"").decode(errors="replace").strip()
        print(f"{said}\nrelease: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{path.stat().st_size:>9,}  {path}")
    return 0


def why_not() -> str | None:
    """Return why this tree cannot be released, None if it can."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(VERSION)}\b", changelog, re.MULTILINE):
        return (
            f"CHANGELOG.md has no section for version {VERSION} of rank_probe/version.py: "
            f"rename 'Unreleased' to '{VERSION} - DATE'"
        )
    if git("status", "--porcelain", "--untracked-files=no"):
        return "tracked files have changed since the last commit: commit them first"
    if not has_helm():
        return "there is no helm for the manifests of Kubernetes: run scripts/setup.sh test"
    return None


def has_helm() -> bool:
    """Return whether the manifests can be made."""
    return shutil.which("helm", path=PROGRAMS) is not None


def release(directory: Path, more: Sequence[str]) -> list[Path]:
    """Write all files into *directory*, in place of an earlier release's; return them.

    *more* is what `git ls-files` is to list in addition to tracked files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in (*directory.glob("rankskew-*"), directory / "SHA256SUMS"):
        old.unlink(missing_ok=True)
    with TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        names = git("ls-files", "-z", "--cached", *more, "--exclude-standard").split("\0")
        copy(names, source)
        os.environ["PIP_CONSTRAINT"] = str(source / CONSTRAINTS)  # pip wants a path without spaces.
        made = [*packages(source, Path(scratch), directory), files_archive(source, directory)]
    sums = directory / "SHA256SUMS"
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in sorted(made)))
    return [*made, sums]


def copy(names: Iterable[str], target: Path) -> None:
    """Copy the files and links *names* of the working tree to *target*."""
    for name in names:
        if name and os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name, follow_symlinks=False)


def packages(source: Path, scratch: Path, directory: Path) -> list[Path]:
    """Build the sdist from *source*, and from that a pure wheel and one for this platform."""
    sdist = build(source, "sdist", directory)[0]
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    pure, native = build(unpacked, "wheel", directory, {"RANKSKEW_COMPILE": "0"}, {})
    if pure == native:
        print("release: no C compiler, so there is no wheel for this platform", file=sys.stderr)
        return [sdist, pure]
    return [sdist, pure, native]


def build(
    source: Path, what: Literal["sdist", "wheel"], directory: Path, *variables: Mapping[str, str]
) -> list[Path]:
    """Build *what* (sdist or wheel) in a clean environment, once for each set of *variables*."""
    with DefaultIsolatedEnv() as environment:
        made: list[Path] = []
        for more in variables or ({},):
            builder = ProjectBuilder.from_isolated_env(environment, source, runner=with_these(more))
            if not made:
                environment.install(builder.build_system_requires)
                environment.install(builder.get_requires_for_build(what))
            made.append(Path(builder.build(what, directory)))
    return made


def with_these(variables: Mapping[str, str]) -> Callable[..., None]:
    """Return what runs the build backend, with *variables* in its environment."""

    def run(command: list[str], cwd: str | None = None, more: dict[str, str] | None = None) -> None:
        quiet_subprocess_runner(command, cwd, {**(more or {}), **variables})

    return run


def files_archive(source: Path, directory: Path) -> Path:
    """Pack what `rankskew files` writes, and what deploys it, into one archive."""
    name = f"rankskew-{VERSION}-files"
    tree = source.parent / name
    files = [sys.executable, "-m", "rankskew", "files", str(tree)]
    subprocess.run(files, cwd=source, check=True, stdout=subprocess.DEVNULL)
    for each in DEPLOYED:
        if (source / "deploy" / each).is_dir():
            shutil.copytree(source / "deploy" / each, tree / "deploy" / each)
    if has_helm():
        make = [str(source / MANIFESTS), str(tree / "deploy" / "kubernetes")]
        variables = {**os.environ, "PATH": PROGRAMS}
        subprocess.run(make, check=True, capture_output=True, env=variables)
    else:
        print("release: no helm, so the archive lacks the manifests made with it", file=sys.stderr)
    for chart in sorted((source / CHART).glob("**/Chart.yaml")):
        # What `helm package` makes, with files in place of links, but without the time of day.
        (tree / CHART).mkdir(parents=True, exist_ok=True)
        whole = shutil.copytree(chart.parent, source.parent / "chart")
        pack(whole, "rankskew", tree / CHART / f"rankskew-{VERSION}.tgz")
    return pack(tree, name, directory / f"{name}.tar.gz")


def pack(tree: Path, name: str, target: Path) -> Path:
    """Write the files of *tree* to *target* as *name*/..., sorted, of nobody and of one time."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(each for each in tree.glob("**/*") if each.is_file()):
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(tree)}")
            entry.size, entry.mtime = path.stat().st_size, epoch
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    target.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))
    return target


def sha256(path: Path) -> str:
    """Return the digest of *path* as sha256sum prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(*arguments: str) -> str:
    """Return what git says about this checkout."""
    return subprocess.run(
        ["git", "-C", ROOT, *arguments], check=True, capture_output=True
    ).stdout.decode()


if __name__ == "__main__":
    sys.exit(main())
