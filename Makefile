# Every target works from a fresh clone with Python 3.11+, make and a package index.
#   make demo           four embedded servers carry one queue and lose its root, live, with a proof at the end
#   make demo-combined  four queues become one, which loses its root, live, with a proof at the end
#   make test           lint, then every test on real PostgreSQL servers
#   make soak           the long fault runs; prints seeds, and counts of faults, events and failovers
#   make bench          ratios against rivals and raw limits; writes docs/benchmarks.md
#   make bench-spark    Spark jobs beside Spark's own JDBC source; writes docs/benchmarks-spark.md

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)

# One worker per core, two at least: most of a test is waiting for a server.
TEST_JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help demo demo-combined test lint format bench bench-spark soak clean

help: ## What the targets do
	@sed -n 's/^#   make /make /p' Makefile

ifneq ($(UV),)
CREATE_VENV = $(UV) venv --quiet --clear --python $(PYTHON) $(VENV)
INSTALL     = VIRTUAL_ENV=$(abspath $(VENV)) $(UV) pip install --quiet
else
CREATE_VENV = $(PYTHON) -m venv --clear $(VENV)
INSTALL     = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

# The two stamps hold what is installed: what running needs, and what developing needs.
$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cascade needs Python 3.11 or newer; set PYTHON=")'
	@echo "Preparing $(VENV) ..."
	@$(CREATE_VENV)
	@$(INSTALL) -e '.[embedded,uvloop]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(INSTALL) -e '.[embedded,uvloop,spark,test,lint]'
	@touch $@

demo: $(VENV)/.run ## Four databases, one queue, live
	@$(BIN)/cascade demo $(DEMO_ARGS)

demo-combined: $(VENV)/.run ## Four queues become one, live
	@$(BIN)/cascade demo --combined $(DEMO_ARGS)

lint: $(VENV)/.dev ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev ## Let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: lint ## Everything but the long runs
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadgroup -m "not soak" $(TEST_ARGS)

soak: $(VENV)/.dev ## The long fault runs
	@$(BIN)/python -m pytest -m soak --timeout 3600 $(TEST_ARGS)

$(VENV)/.bench: $(VENV)/.dev
	@$(INSTALL) -e '.[embedded,uvloop,spark,test,lint,bench]'
	@touch $@

bench: $(VENV)/.bench ## Ratios; see docs/benchmarks.md
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

bench-spark: $(VENV)/.bench ## Ratios; see docs/benchmarks-spark.md
	@$(BIN)/python -m tests.bench.spark $(BENCH_ARGS)

clean: ## Remove the virtual environment and what the tools left
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
