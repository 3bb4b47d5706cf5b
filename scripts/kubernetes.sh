#!/usr/bin/env bash
# Renders the manifests below deploy/kubernetes from the Helm chart; git has only the chart.
#
#   scripts/kubernetes.sh              in place
#   scripts/kubernetes.sh DIRECTORY    in a copy of deploy/kubernetes
#
# Uses the Helm that `scripts/setup.sh test` has fetched, else the one in PATH.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:-$root/deploy/kubernetes}
PATH=$root/.node/helm:$PATH
if ! command -v helm >/dev/null; then
    echo "kubernetes: no helm in PATH: install it, or take deploy/kubernetes from a release" >&2
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
render() { # Helm logs every symlink in the chart, so its log is shown only if it fails.
    helm template rankskew "$root/deploy/helm/rankskew" "$@" 2>"$scratch/log" ||
        { cat "$scratch/log" >&2; exit 1; }
}

# The base is the chart rendered with its default values, so nothing is written twice.
render --output-dir "$scratch" >/dev/null
cp "$scratch"/rankskew/templates/*.yaml "$directory/base/"
render --set prometheusOperator=false --show-only templates/rules.yaml \
    >"$directory/components/no-operator/rules.yaml"
