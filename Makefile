# Two commands on a new machine: `make all` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TARGETS ?= all
# The scanner of traces and the inner loop of the sampler; `pip install` builds them.
NATIVE := $(wildcard src/triplepoint/trace/kineto/scanner/*.[ch] src/triplepoint/telemetry/native/*.c)
SMK := Snakefile $(wildcard rules/*.smk)

.PHONY: all env test test-gangs test-workflow test-rest check format lint types docs clean help

help:
	@echo "make all     make the environment, then every figure and report.html"
	@echo "make test    make the environment, then run the tests"
	@echo "make check   formatter, linter, type checker, snakefmt, snakemake --lint, tests: what CI runs"
	@echo "make docs    make the environment, then the documentation as a site with search: site/index.html"
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c envs/constraints.txt -e '.[dev]'
	@touch $(READY)

# Gangs of ranks, on Slurm or here, have time limits, and go first where there are few processors.
test: env
	$(MAKE) --jobs=3 --keep-going --output-sync=target test-gangs test-workflow test-rest

# Byte code of the tests too, see env: compiling them takes as long as importing them.
test-gangs test-workflow test-rest: export PYTHONDONTWRITEBYTECODE :=

test-gangs: env
	$(BIN)/python -m pytest -p no:cacheprovider tests/slurm tests/unit/launch

test-workflow: env
	nice -n 5 $(BIN)/python -m pytest -p no:cacheprovider tests/workflow

test-rest: env
	nice -n 5 $(BIN)/python -m pytest --ignore=tests/slurm --ignore=tests/unit/launch --ignore=tests/workflow

check: env format lint types docs test

format: env
	$(BIN)/ruff format --check src tests
	$(BIN)/snakefmt --check $(SMK)

lint: env
	$(BIN)/ruff check src tests
	$(BIN)/snakemake --lint

types: env
	$(BIN)/mypy

# Offline and without telemetry; pages, links and anchors that are not there fail it.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

clean:
	@printf 'Remove results/, figs/, logs/, report/ and report.html? Measured runs are lost. [y/N] '; read answer; \
	    [ "$$answer" = y ] && rm -rf results figs logs report report-* report.html || echo "kept"
