# What one does with a checkout. Needs make and Python 3.11 or newer; everything else goes into .venv.
#
#   make run        serve on the default ports from ./data
#   make test       the whole suite but for what needs real Kafka
#   make interop    against real Kafka, and with clients of other languages (Java, Maven, Node, Go, kcat; what is missing is said)
#   make sparks     the pipeline's tests with each Spark that it works with (some minutes, 450 MB each while it runs)
#   make lint       ruff, mypy, import-linter
#   make bench      the figures of docs/performance.md, ARGS="..." chooses among them
#   make setup      .venv and nothing else; builds what is compiled, which takes a minute
#   make pure       take the compiled modules away until the next setup, to work on them
#   make figures    the pictures of docs/page-cache.md, from the figures beside them
#   make coverage   the suite with branch coverage
#   make fixtures   tests/fixtures/kafka anew, with real Kafka
#   make docs       the tables of docs/kafka-compatibility.md, made from the code
#   make lock       requirements/*.lock anew from pyproject.toml
#   make dist       wheel and sdist in dist/
#   make clean      all that can be made again (never ./data)

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
READY := .venv/ready
# The modules that mypyc compiles: a change of one of them asks for a build.
COMPILED := $(shell sed -n 's/^    "\(.*\.py\)",$$/\1/p' setup.py)
ARGS ?=
SPARKS ?= 4.0.5 4.1.4 4.2.1
# The one that writes the lock files; nothing else needs it.
UV_VERSION := 0.13.8

.DELETE_ON_ERROR:
.PHONY: help setup pure run test lint interop sparks bench figures coverage fixtures docs lock dist clean

help:
	@sed -n 's/^#   make/make/p' Makefile

setup: $(READY)

# The lock first, with its hashes; then warmlog itself, editable, built with what the lock brought (no second environment).
$(READY): pyproject.toml setup.py requirements/dev.lock $(wildcard broker/*.pyx broker/log/*.pyx protocol/*/*.pyx protocol/*/*.pxi) $(COMPILED)
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed and none was found (PYTHON=... names one)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { \
		echo "make: $(PYTHON) cannot make virtual environments (Debian: apt-get install python3-venv)" >&2; rm -rf .venv; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Each lies beside its source; all of them are doors to one library in the top directory.
pure:
	rm -f $(READY) warmlog_compiled__mypyc*.so $(foreach module,$(COMPILED),$(basename $(module)).cpython-*.so)

run: setup
	$(BIN)/warmlog serve --data-dir ./data $(ARGS)

test: setup
	$(BIN)/pytest -m "not interop" $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

interop: setup
	PATH="$$PATH:/usr/local/go/bin" $(BIN)/pytest -m interop tests/interop tests/deploy $(ARGS)

# Each is laid before the one of the environment. Its own sockets are not closed everywhere, which newer ones have mended.
sparks: setup
	@set -e; for version in $(SPARKS); do echo "Spark $$version"; \
		$(BIN)/pip install --quiet --no-deps --no-compile --target build/spark-$$version pyspark==$$version; \
		PYTHONPATH=build/spark-$$version SPARK_HOME=build/spark-$$version/pyspark $(BIN)/pytest tests/pipeline \
			-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning $(ARGS); \
		rm -rf build/spark-$$version; done

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

figures: setup
	$(BIN)/python -m benchmarks.pictures

# Of what is compiled, coverage sees nothing.
coverage: setup
	$(MAKE) pure
	$(BIN)/pytest -m "not interop" --cov --cov-report=term-missing:skip-covered $(ARGS)

fixtures: setup
	@set -e; for program in interop/generate_*.py; do echo "$$program"; $(BIN)/python "$$program"; done

docs: setup
	$(BIN)/python interop/compatibility_document.py

UV_COMPILE := .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header

lock:
	test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv==$(UV_VERSION); }
	$(UV_COMPILE) pyproject.toml --output-file requirements/runtime.lock
	$(UV_COMPILE) pyproject.toml --all-extras --constraint requirements/runtime.lock --output-file requirements/dev.lock
	$(UV_COMPILE) --group build --constraint requirements/dev.lock --output-file requirements/build.lock

dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf .venv .venv-lock build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		.coverage htmlcov interop/kafka/target interop/go/target interop/node/node_modules \
		broker/log/_*.c protocol/*/_*.c
	find broker protocol warmlog_compiled__mypyc*.so -name '*.so' -delete
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
