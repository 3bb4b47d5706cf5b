#!/usr/bin/env bash
# Build the exporter's image with whichever of docker, podman and buildah works here:
#
#   scripts/build_image.sh                                 rankskew:VERSION
#   IMAGE=registry.example.org/rankskew:1 scripts/build_image.sh
#   scripts/build_image.sh --build-arg BASE=localhost/base     any option of `docker build`
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' rank_probe/version.py)
image=${IMAGE:-rankskew:$version}

# `info` fails for a client whose engine does not run.
if docker info >/dev/null 2>&1; then
    build=(docker build)
elif podman info >/dev/null 2>&1; then
    build=(podman build --format docker)
elif buildah info >/dev/null 2>&1; then
    build=(buildah build --format docker) # The OCI format has no health check.
else
    echo "image: docker, podman or buildah is needed, and none of them works here:" >&2
    echo "    sudo apt-get install buildah" >&2
    exit 1
fi
echo "image: ${build[0]} builds $image" >&2
exec "${build[@]}" "$@" --tag "$image" .
