"""The images, built once."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.image.builder import Builder


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    """A builder with a base; its storage is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="rankskew-image-") as directory:
        made = Builder(Path(directory))
        made.make_base()
        yield made


@pytest.fixture(scope="session")
def image(builder: Builder) -> Iterator[Path]:
    """The root of the exporter's image, built by `make image`'s own script."""
    # docker's client may be there without an engine, as in CI; podman has another storage.
    builder.run("scripts/build_image.sh", *builder.options(), IMAGE="rankskew:local")
    with builder.mounted("localhost/rankskew:local") as root:
        yield root
