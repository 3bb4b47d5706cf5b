# The commands of the README. Everything runs in .venv, which scripts/setup.sh creates.
SHELL := /bin/bash
PYTHON := .venv/bin/python
BUILT := alerts dashboards generators
TORCH := 2.4 2.6 2.8 2.10 2.15

.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile)
export PYTHONDONTWRITEBYTECODE := # Otherwise each process of a test compiles what it imports.
# What takes longest begins first (tests/conftest.py), and mostly waits: hence three workers. A file stays in one.
TESTED := $(PYTHON) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 5 -m

help: ## list the commands
	@grep -E '^[a-z0-9%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

demo: ## a planted straggler pages you; DEMO_FAULT=data|forward|backward|optimizer|none
	@scripts/setup.sh demo
	@exec $(PYTHON) -m demo

test: ## set up, then everything: lint, types, unit tests, promtool, end-to-end
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory -j 2 check tested

tested:
	@$(PYTHON) -m pytest --collect-only -qq > /dev/null # It compiles all, once.
	$(TESTED) "not (deploy or nightly)"

check: ## lint, types, and whether generated files are up to date
	$(PYTHON) -m ruff format --check . && $(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	@for each in $(BUILT); do $(PYTHON) -m $$each.build --check || exit; done

unit: ## all tests that need no more than seconds
	$(TESTED) "not (jobs or e2e or deploy or nightly)"

test-deploy: ## deploy onto a real Slurm, systemd and an image, each timed to its first page (needs root)
	@scripts/setup.sh nightly
	$(PYTHON) -m pytest -q -m deploy

test-torch: ## the probe on other releases of torch, each in an environment of its own (20 minutes each; TORCH="2.4 2.8/3.12", TORCH_FOLDER=.torch)
	TORCH="$(TORCH)" TORCH_FOLDER="$(TORCH_FOLDER)" $(PYTHON) -m pytest -q -s tests/nightly/test_torch_versions.py

test-nightly: test-deploy ## that, and what is slow and seldom broken by a change: 200 kills, hostile input, other rule engines, mutants
	RANKSKEW_NIGHTLY=full $(PYTHON) -m pytest -q -m nightly

bench-%: ## NAME is overhead, accuracy, ways, causes, latency, join, scrape, scale, panels, gpu_check (minutes to hours; ARGUMENTS="--ranks 4")
	@$(if $(filter overhead,$*),$(PYTHON) -m pip install -q --disable-pip-version-check -r benchmarks/requirements.txt)
	$(PYTHON) -m benchmarks.$* $(ARGUMENTS)

image: ## build the exporter's image with docker, podman or buildah; IMAGE=rankskew:VERSION
	@scripts/build_image.sh

docs: ## regenerate rules, dashboards, and what the documentation lists: metrics, flags, alerts, figures
	@for each in $(BUILT); do $(PYTHON) -m $$each.build || exit; done

kubernetes: ## make the manifests below deploy/kubernetes from the Helm chart (needs helm); a release has them
	@scripts/kubernetes.sh

PINNED := -m piptools compile -q --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host pyproject.toml

lock: ## pin what the image installs and is built with, with hashes
	@$(PYTHON) -m pip install -q --disable-pip-version-check 'pip-tools>=7,<8'
	$(PYTHON) $(PINNED) --extra exporter -o deploy/image/requirements.txt
	$(PYTHON) $(PINNED) --only-build-deps --all-build-deps -o deploy/image/build-requirements.txt

release: ## wheels, sdist, an archive of all other files, and their sums, in dist/ (RELEASE=dev before a release)
	@$(PYTHON) scripts/release.py $(if $(filter dev,$(RELEASE)),--dev) dist

clean: ## remove what the commands above created
	rm -rf .venv .node .torch .deploy .demo .accuracy dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis; git clean -fqX deploy/kubernetes || true
