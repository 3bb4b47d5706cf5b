"""Tells the user's own code from torch's, Python's and the probe's, and names a line of it."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rank_probe.lines.system_calls import end_of
from rank_probe.torch_hooks.dynamo import DIRECTORY

# A path that has one of these was installed, whichever environment it belongs to.
INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
# Together within what the exporter takes as a label, 128 characters, with five digits of a line.
FUNCTION_CHARACTERS: Final = 64
FILE_CHARACTERS: Final = 48
FILE_PARTS: Final = 3
# Such a line is in `forward`, but not in the forward pass.
BEFORE_MODEL: Final = ", before the model is called"


class CodeLine(NamedTuple):
    """A line of source: the function's qualified name, its file as compiled, the line's number.

    *before_model*: it ran after the batch had arrived and before the model was called with it.
    """

    function: str
    file: str
    number: int
    before_model: bool = False


class UserCode:
    """What is the user's among the files of this process.

    *libraries* are the directories of code that is not; *import_roots* those that modules are
    imported from, among them the script's own. It is for any thread.
    """

    def __init__(self, libraries: Iterable[str], import_roots: Iterable[str]) -> None:
        self._libraries = tuple(_directory(each) for each in libraries if each)
        # Longest first: what is left of a path is then the shortest.
        self._roots = sorted({_directory(each) for each in import_roots}, key=len, reverse=True)
        self._known: dict[str, bool] = {}

    def has(self, file: str) -> bool:
        """Whether *file*, as a code object names it, is the user's.

        Code without a file, such as `<string>` or a frozen module, is nobody's.
        """
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._is_users(file)
        return known

    def place(self, line: CodeLine) -> str:
        """Return *line* for people: `Corpus.__next__ (data/corpus.py:41)`, printable and short."""
        function = line.function.replace("<locals>.", "")
        when = BEFORE_MODEL if line.before_model else ""
        return (
            f"{end_of(function, FUNCTION_CHARACTERS - len(when))} "
            f"({end_of(self._relative(line.file), FILE_CHARACTERS)}:{line.number}){when}"
        )

    def _is_users(self, file: str) -> bool:
        if not file or file.startswith("<"):
            return False
        path = os.path.abspath(file)
        return not path.startswith(self._libraries) and not any(each in path for each in INSTALLED)

    def _relative(self, file: str) -> str:
        """Return *file* as its module is imported; its bare name if no root contains it.

        No directory above the user's project is exposed, because it often contains a person's name.
        """
        path = os.path.abspath(file)
        for root in self._roots:
            if path.startswith(root):
                return "/".join(path[len(root) :].split(os.sep)[-FILE_PARTS:])
        return os.path.basename(path)


def of_this_process(environment: Mapping[str, str] = os.environ) -> UserCode:
    """Return what is the user's, as far as the interpreter's own directories show it."""
    paths = sysconfig.get_paths()
    libraries = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries += [DIRECTORY, *_torch(), site.getusersitepackages()]
    return UserCode(libraries, _below_home(sys.path, environment.get("HOME", "")))


def _torch() -> Sequence[str]:
    """Return torch's directory: one that was built in place is not among the installed."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return [os.path.dirname(file)] if file else []


def _below_home(roots: Iterable[str], home: str) -> list[str]:
    """Return *roots* without those that contain *home*: below them come the names of users."""
    return [root for root in roots if not (home and home.startswith(_directory(root)))]


def _directory(path: str) -> str:
    return os.path.abspath(path).rstrip(os.sep) + os.sep
