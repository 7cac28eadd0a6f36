# Two commands on a new machine: `make all` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TARGETS ?= all
# The scanner of traces, and the inner loops of the sampler and of simulated heat; `pip install` builds them.
NATIVE := $(wildcard $(addprefix src/triplepoint/,trace/kineto/scanner/*.[ch] telemetry/native/*.c simulate/heat/stretches/*.[ch]))
SMK := Snakefile $(wildcard rules/*.smk)

# Strong copyleft, as pip-licenses writes it; what stands on several licences, such as docutils, is taken by another.
COPYLEFT := GNU General Public License v2 (GPLv2);GNU General Public License v3 (GPLv3);GNU Affero General Public License v3
COPYLEFT := $(COPYLEFT);GPL-2.0-only;GPL-2.0-or-later;GPL-3.0-only;GPL-3.0-or-later;AGPL-3.0-only;AGPL-3.0-or-later
# MIT by the licence file in their wheels, which pip-licenses does not read; any other package without one fails the audit.
MIT := conda-inject $(addprefix snakemake-interface-,common logger-plugins report-plugins scheduler-plugins storage-plugins)
AUDIT := .venv-audit

.PHONY: all env test test-all campaign regression check format lint types docs audit clean help

help:
	@echo "make all     make the environment, then every figure and report.html"
	@echo "make test    make the environment, then run the tests, but for the long ones"
	@echo "make test-all  the long ones too: every layout of every engine, every fit repeated, every example"
	@echo "make campaign  random faults to files, launches, disks, projects and Slurm: some half an hour, log in logs/"
	@echo "make regression  whether commands take a fifth more CPU time than at BASE (default: HEAD~1): some five minutes"
	@echo "make check   formatter, linter, type checker, snakefmt, snakemake --lint, tests: what CI runs"
	@echo "make docs    make the environment, then the documentation as a site with search: site/index.html"
	@echo "make audit   known vulnerabilities and licences of the pins; asks pypi.org"
	@echo "make env     only the environment, in $(VENV)"
	@echo "make clean   remove results, figures and the report (asks first)"

all: env
	$(BIN)/snakemake $(TARGETS)

# Byte code too: where PYTHONDONTWRITEBYTECODE is set, as in many containers, each of 500 processes would compile anew.
env: $(READY)
	@$(BIN)/python -m compileall -q src

# torch and the rest by plain pip with one pins file: without it pip takes a torch with gigabytes of CUDA.
$(READY): pyproject.toml envs/constraints.txt $(NATIVE)
	@echo "== environment in $(VENV): about two minutes the first time"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "triplepoint needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c envs/constraints.txt -e '.[dev]'
	@# Byte code on all cores, and without tests, which are a third; packages have a few files that are no Python 3.
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || :
	@touch $(READY)

# Lanes of equal work where they can be, four side by side, so that none is left alone with one core at the end and tests
# with time limits are not starved. Gangs wait for most of their time, so they go first.
GANGS := $(addprefix tests/unit/,doctor launch recorded)
MODELS := $(addprefix tests/unit/,advise aggregate calibrate published)
TRACES := $(addprefix tests/unit/,simulate trace)
FIGURES := $(addprefix tests/unit/,figures telemetry)
# Tests marked `long` repeat for more layouts, models and rows what others show for one; `test-all` runs them too, and
# tries properties on all of their examples.
SHORT := -m "not long"
TESTS := $(addprefix test-,slurm gangs workflow models rest traces figures)
LANES := --jobs=4 --keep-going --output-sync=target
.PHONY: $(TESTS)
test: env
	$(MAKE) $(LANES) $(TESTS)

test-all: export TRIPLEPOINT_ALL_EXAMPLES := 1
test-all:
	$(MAKE) test SHORT=

# Byte code of the tests too, see env: compiling them takes as long as importing them.
$(TESTS): export PYTHONDONTWRITEBYTECODE :=

test-slurm: env
	$(BIN)/python -m pytest $(SHORT) -p no:cacheprovider tests/slurm

test-gangs: env
	$(BIN)/python -m pytest $(SHORT) -p no:cacheprovider $(GANGS)

test-workflow: env
	nice -n 5 $(BIN)/python -m pytest $(SHORT) -p no:cacheprovider tests/workflow

test-models: env
	nice -n 5 $(BIN)/python -m pytest $(SHORT) -p no:cacheprovider $(MODELS)

test-traces: env
	nice -n 5 $(BIN)/python -m pytest $(SHORT) -p no:cacheprovider $(TRACES)

test-figures: env
	nice -n 5 $(BIN)/python -m pytest $(SHORT) -p no:cacheprovider $(FIGURES)

test-rest: env
	nice -n 5 $(BIN)/python -m pytest $(SHORT) $(addprefix --ignore=,tests/slurm tests/workflow $(GANGS) $(MODELS) $(TRACES) $(FIGURES))

# The same seeds do the same; another week: make campaign FIRST=1000. Slurm of the tests has to be up, or say SLURM=0.
FIRST ?= 1
SLURM ?= 10
campaign: env
	@mkdir -p logs
	bash -o pipefail -c '$(BIN)/python -m tests.benchmarks.fault_campaign --first $(FIRST) --number 300 --launches 10 \
	    --disks 20 --pipelines 30 --slurm $(SLURM) 2>&1 | tee logs/campaign.log'

BASE ?= HEAD~1
regression: env
	$(BIN)/python -m tests.benchmarks.regression --base $(BASE)

# The type checker takes a minute and a half of one core, so it runs beside the tests. One of them builds the documentation.
check: env format
	$(MAKE) $(LANES) $(TESTS) types lint

format: env
	$(BIN)/ruff format --check src tests
	$(BIN)/snakefmt --check $(SMK)

lint: env
	$(BIN)/ruff check src tests
	$(BIN)/snakemake --lint

types: env
	nice -n 5 $(BIN)/mypy

# Offline and without telemetry; pages, links and anchors that are not there fail it. `--quiet` would hide them from `--strict`.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

audit: env
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit pip-licenses 2> $(AUDIT)/errors \
	    || { echo "audit: no package index in reach; run it on a machine that has one" >&2; exit 2; }
	@$(AUDIT)/bin/pip-licenses --python=$(BIN)/python --from=mixed --summary --ignore-packages $(MIT) \
	    --fail-on="$(COPYLEFT);UNKNOWN" > $(AUDIT)/licences 2> $(AUDIT)/errors || { tail -n 1 $(AUDIT)/errors >&2; exit 2; }
	@$(AUDIT)/bin/pip-audit --requirement envs/constraints.txt --no-deps --disable-pip --progress-spinner off \
	    > $(AUDIT)/vulnerabilities 2> $(AUDIT)/errors \
	    || { cat $(AUDIT)/vulnerabilities >&2; tail -n 1 $(AUDIT)/errors | cut -c 1-200 >&2; exit 2; }
	@unknown=$$(grep -c "could not be audited" $(AUDIT)/vulnerabilities); [ $$unknown = 0 ] \
	    || { echo "audit: pypi.org told nothing of $$unknown of $$(grep -c == envs/constraints.txt) pins, the others" \
	    "have no known vulnerability; see $(AUDIT)/vulnerabilities" >&2; exit 2; }
	@echo "audit: no pin has a known vulnerability or strong copyleft"

clean:
	@printf 'Remove results/, figs/, logs/, report/ and report.html? Measured runs are lost. [y/N] '; read answer; \
	    [ "$$answer" = y ] && rm -rf results figs logs report report-* report.html || echo "kept"
