# What one does with a checkout. Needs make and Python 3.11 or newer; everything else goes into .venv and build.
#
#   make run        serve on the default ports from ./data
#   make cluster    run etcd and three brokers on 127.0.0.1 to 127.0.0.3, with data in ./data/cluster
#   make test       run the suite, except what needs real Kafka, a container engine or many seconds
#   make interop    test with real Kafka, clients in Java, Node, Go and C, Spark, pip, podman, and killed brokers (says what is missing)
#   make stacks     run Streams, MirrorMaker 2, Spring, Iceberg catalogs and librdkafka's own suite (some minutes)
#   make sparks     run the pipeline's tests with each Spark version it supports (some minutes, 450 MB each while it runs)
#   make simulate   simulate clusters with faults, from seed to seed, on all cores: SECONDS="60", ARGS="SEED ..."
#   make lint       ruff, mypy, import-linter, commit subjects, words, links of the documentation
#   make audit      look for known vulnerabilities of the locked packages; needs a network, or ADVISORIES="DIR"
#   make bench      measure the figures of docs/performance.md; ARGS="..." selects some
#   make bench-guard  fail if serving costs more than its bounds, beside bare system calls; about a minute
#   make setup      make .venv with every extra, and compile; repeated, it rebuilds only what changed
#   make ui         take the libraries of the console from npm; setup does so, too, where npm is found
#   make figures    draw the pictures of docs/page-cache.md from the figures beside them
#   make coverage   run the suite with branch coverage
#   make fixtures   write tests/fixtures/kafka again with real Kafka
#   make docs       generate the reference pages in docs from the code, and build the site in build/docs
#   make lock       update requirements/*.lock from pyproject.toml
#   make dist       build the sdist, and a wheel for each Python of PYTHONS="3.11 ..." that is here, in dist/
#   make clean      delete everything that can be made again (never ./data)

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
ARGS ?=
PYTHONS ?= 3.11 3.12 3.13 3.14
SECONDS ?=
ADVISORIES ?=
SPARKS ?= 4.0.5 4.1.4 4.2.1
# uv installs a lock file in a fraction of pip's time. pip, which reads its own configuration, is tried where uv fails.
# --compile: byte code is written also where PYTHONDONTWRITEBYTECODE keeps programs from doing so; without it a start
# takes twice as long. uv leaves out modules that are not in a package, so compileall does these.
INSTALL = sh -c '$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps "$$@" \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "$$@"' install

BYTE_COMPILE = $(BIN)/python -m compileall -q protocol broker warmlog pyspark_warmlog
# pyspark comes as a source distribution: compressing half a gigabyte into a wheel that is unpacked at once takes 20 s.
STORED := --config-settings=--build-option=--compression=stored

# -W: a dead link, or a page outside the navigation, is an error; -E: pages that did not change are checked, too.
SPHINX := $(BIN)/sphinx-build --quiet -W --keep-going -E

# pytest rewrites the assertions of 600 modules in each of its processes, unless it may keep the result.
REWRITTEN := PYTHONDONTWRITEBYTECODE=

# Setup in four steps, each with a file that says when it was done. Serving needs the first three; `make setup` installs
# the extras, half a gigabyte of Spark among them, while the C compiler runs.
TOOLS := .venv/tools
COMPILED := .venv/compiled
INSTALLED := .venv/installed
EXTRAS := .venv/extras
AUDIT := .venv/audit/installed
REWRITTEN_ONCE := .venv/rewritten
SOURCES := $(shell find broker protocol -name '*.py*' -not -name '*.py[ci]')

LINTS := lint-types lint-docs lint-text lint-imports lint-style

INTEROP_JOBS := interop-tables interop-clients interop-packages interop-spark interop-answers interop-cluster \
	interop-storage interop-containers

.DELETE_ON_ERROR:
.PHONY: help setup ui run cluster test simulate lint audit interop spark-classes $(INTEROP_JOBS) $(LINTS) stacks sparks bench \
	bench-guard figures coverage fixtures docs lock dist clean

help:
	@sed -n 's/^#   make/make/p' Makefile

setup:
	@$(MAKE) --no-print-directory -j2 $(INSTALLED) $(EXTRAS)

$(TOOLS): requirements/uv.lock requirements/runtime.lock requirements/build.lock
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed and none was found (PYTHON=... names one)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { \
		echo "make: $(PYTHON) cannot make virtual environments (Debian: apt-get install python3-venv)" >&2; rm -rf .venv; exit 1; }
	@echo "warmlog: installing dependencies and build tools"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock
	@$(INSTALL) --require-hashes -r requirements/build.lock
	@$(INSTALL) --require-hashes --compile -r requirements/runtime.lock
	@$(BIN)/python -m compileall -q -l .venv/lib/python3*/site-packages
	@touch $@

# setup.py builds only what pyproject.toml lists, and only if that changed.
$(COMPILED): $(TOOLS) setup.py pyproject.toml $(SOURCES)
	@touch $@.begun
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BYTE_COMPILE)
	@mv $@.begun $@

$(INSTALLED): pyproject.toml setup.py warmlog/ui/package-lock.json | $(COMPILED)
	@$(BIN)/python warmlog/ui/vendor.py --optional
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(EXTRAS): $(TOOLS) requirements/dev.lock
	@echo "warmlog: installing the extras for tests and Spark"
	@$(INSTALL) --require-hashes --compile $(STORED) -r requirements/dev.lock
	@touch $@

# The page of the console needs its libraries; without npm everything else works, and the page says what to do.
ui:
	@$(PYTHON) warmlog/ui/vendor.py

run: $(INSTALLED)
	@$(BYTE_COMPILE)
	$(BIN)/warmlog serve --data-dir ./data $(ARGS)

cluster: $(INSTALLED)
	@$(BYTE_COMPILE)
	$(BIN)/python deploy/cluster.py $(ARGS)

# In two processes more than there are cores, as tests wait for a third of their time, and at most four: each may start a
# cluster of its own. Files are kept whole for the fixtures of their modules, and run in random order: with those that have
# most tests first, as is the default, the ones that wait for other processes would all be left for the end.
TESTERS = $(shell n=$$(($$(getconf _NPROCESSORS_ONLN) + 2)); echo $$((n < 4 ? n : 4)))
test: setup $(REWRITTEN_ONCE)
	$(REWRITTEN) $(BIN)/pytest -m "not interop and not stacks" --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Each of the processes would rewrite all modules, as they collect the same ones at the same time. Here each half of them is
# rewritten once. An error is one of the tests, too.
COLLECT = $(REWRITTEN) $(BIN)/pytest --collect-only -qq -p no:cacheprovider
$(REWRITTEN_ONCE): $(EXTRAS) | setup
	@echo "warmlog: rewriting the assertions of the tests"
	@$(COLLECT) tests/broker >/dev/null & $(COLLECT) tests --ignore tests/broker >/dev/null; wait
	@touch $@

simulate: setup
	$(BIN)/python -m tests.cluster.simulation $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

# Two at once: mypy takes longer than all others together.
lint: setup
	@$(MAKE) --no-print-directory -j2 --keep-going --output-sync=target $(LINTS)

lint-types:
	$(BIN)/mypy

lint-docs:
	$(SPHINX) -b dummy docs build/docs-check

lint-text:
	$(BIN)/python -m tests.check_text

lint-imports:
	$(BIN)/lint-imports

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# pip-audit has an environment of its own: its dependencies are none of ours. This is no part of .ci/run, which needs no
# network, and whose result depends on the commit only.
audit: setup $(if $(ADVISORIES),,$(AUDIT))
	$(BIN)/python -m interop.dependency_audit --pip-audit .venv/audit/bin/pip-audit $(if $(ADVISORIES),--advisories "$(ADVISORIES)")

$(AUDIT): $(TOOLS) requirements/audit.lock
	@$(BIN)/python -m venv --clear .venv/audit
	@$(BIN)/uv pip install --quiet --python .venv/audit/bin/python --no-deps --require-hashes -r requirements/audit.lock
	@touch $@

# Each test of `make interop` is in one job, which tests/test_tidy.py checks. Three jobs at once, each waiting for other
# processes for some of its time, the longest ones first. They share no port and no directory, and lock what more than one
# builds; containers are in a network namespace of their own. ARGS may leave a job without tests (pytest's status 5).
INTEROP = PATH="$$PATH:/usr/local/go/bin" $(REWRITTEN) $(BIN)/pytest -m interop -p no:cacheprovider $(ARGS)
EMPTY_OK = || test $$? -eq 5 -a -n '$(subst ','\'',$(ARGS))'

interop: setup spark-classes
	@$(MAKE) --no-print-directory -j3 --keep-going --output-sync=target $(INTEROP_JOBS)

# Spark starts in half of the time with an archive of its classes; without Java there is none.
spark-classes: setup
	$(BIN)/python -m tests.pipeline.class_archive || echo "no archive of Spark's classes"

interop-packages:
	$(INTEROP) tests/packaging $(EMPTY_OK)

interop-tables:
	$(INTEROP) tests/pipeline/lakehouse $(EMPTY_OK)

interop-clients:
	$(INTEROP) tests/interop/clients $(EMPTY_OK)

interop-answers:
	$(INTEROP) tests/interop --ignore tests/interop/clients --ignore tests/interop/storage $(EMPTY_OK)

interop-storage:
	$(INTEROP) tests/interop/storage $(EMPTY_OK)

interop-spark:
	$(INTEROP) tests/pipeline --ignore tests/pipeline/lakehouse $(EMPTY_OK)

interop-containers:
	$(INTEROP) tests/console tests/deploy $(EMPTY_OK)

interop-cluster:
	$(INTEROP) tests/broker tests/clients tests/cluster tests/crash tests/warmlog $(EMPTY_OK)

stacks: setup
	$(BIN)/pytest -m stacks tests/stacks tests/pipeline/recipes $(ARGS)

# Each is laid before the one of the environment. Its own sockets are not closed everywhere, which newer ones have mended.
sparks: setup
	@set -e; for version in $(SPARKS); do echo "Spark $$version"; spark=$(CURDIR)/build/spark-$$version; \
		$(BIN)/pip install --quiet --no-deps --no-compile --target $$spark pyspark==$$version; \
		PYTHONPATH=$$spark SPARK_HOME=$$spark/pyspark $(BIN)/pytest tests/pipeline \
			-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning $(ARGS); \
		rm -rf $$spark; done

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

bench-guard: setup
	$(BIN)/python -m benchmarks 'guard-*' --rounds 5 --seconds 0.3 --strict $(ARGS)

figures: setup
	$(BIN)/python -m benchmarks.report.pictures

# Of what is compiled, coverage sees nothing.
coverage: setup
	WARMLOG_PURE=1 $(BIN)/pytest -m "not interop and not stacks" --cov --cov-report=term-missing:skip-covered $(ARGS)

fixtures: setup
	@set -e; for program in interop/generate_*.py; do echo "$$program"; $(BIN)/python "$$program"; done

docs: setup
	$(BIN)/python interop/reference_pages.py
	$(SPHINX) -b html docs build/docs

# The build's tools include what mypyc needs to see the types of: the dependencies, in the versions that are installed.
UV_COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header

lock: $(TOOLS)
	echo "uv" | $(UV_COMPILE) - --output-file requirements/uv.lock
	$(UV_COMPILE) pyproject.toml --output-file requirements/runtime.lock
	$(UV_COMPILE) pyproject.toml --all-extras --constraint requirements/runtime.lock --output-file requirements/dev.lock
	echo "pip-audit" | $(UV_COMPILE) - --constraint requirements/dev.lock --output-file requirements/audit.lock
	$(UV_COMPILE) pyproject.toml --extra tls --extra oauth --constraint requirements/dev.lock --output-file requirements/secure.lock
	$(UV_COMPILE) --group build --constraint requirements/dev.lock --output-file requirements/build.lock

dist: setup
	rm -rf dist
	$(BIN)/python -m build --sdist --outdir dist .
	@for version in $(PYTHONS); do \
		python=$$(ls -d $$HOME/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -n 1); \
		python=$${python:-$$(command -v python$$version)}; \
		if $$python -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" 2>/dev/null; then \
			echo "warmlog: building the wheel for Python $$version"; \
			$(BIN)/python -m pip --quiet --disable-pip-version-check --python $$python wheel --no-deps --wheel-dir dist dist/*.tar.gz || exit 1; \
		else \
			echo "warmlog: Python $$version is not here: no wheel for it"; \
		fi; \
	done

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		.coverage htmlcov interop/kafka/target interop/go/target interop/node/node_modules \
		interop/spring/target interop/librdkafka/node_modules interop/console/node_modules
	find broker protocol warmlog \( -name '*.so' -o -name '_*.c' \) -delete
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
