# Everything a newcomer, a developer and CI type. Each target does all the set-up it needs.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test coverage test-long test-gpu check bench bench-agents bench-gpu bench-gpu-intervals bench-gpu-solutions format sandbox browser \
	test-browser docs diagrams site clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# bubblewrap is the sandbox of every judged candidate; the judge does not run agents' code without it.
sandbox:
	@command -v bwrap >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq bubblewrap; \
	else \
	  echo "bubblewrap is missing. Install it, then try again:  sudo apt-get install bubblewrap"; exit 1; \
	fi

demo: $(VENV)/installed sandbox
	$(BIN)/python -m tests.demo

# Repositories of tests are small, many, and written with fsync: in memory they wait for no disk. It takes 4 GB of room,
# and programs must be allowed to run there.
TESTS_IN = $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000' | grep -q . \
	&& ! grep -q ' /dev/shm [a-z]* [^ ]*noexec' /proc/mounts && echo TMPDIR=/dev/shm)
TESTS := pytest -n 5 --dist loadgroup -m "not gpu and not slow"

test: $(VENV)/installed sandbox
	$(TESTS_IN) $(BIN)/python -m $(TESTS)

# Branch coverage of `make test` alone, with the processes that it starts.
coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: export COVERAGE_SOURCE := $(CURDIR)/harness
coverage: $(VENV)/installed sandbox
	rm -rf build/coverage && mkdir -p build/coverage
	$(TESTS_IN) $(BIN)/python -m coverage run -m $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# Chromium, for the report's tests in a browser: the distribution's own, driven by playwright without a download of its own.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq chromium; \
	else \
	  echo "Chromium is missing. Install it, then try again:  sudo apt-get install chromium"; exit 1; \
	fi

test-browser: $(VENV)/installed browser
	$(BIN)/python -m pytest -m browser

# The compilers of the documentation pack's Triton and CuTe DSL samples: large, and nothing else needs them.
$(VENV)/samples: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[samples]"
	touch $@

# Model code for `harness problems extract`.
$(VENV)/extract: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[extract]"
	touch $@

# mkdocs, for `make site`.
$(VENV)/site: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[site]"
	touch $@

# Ray, for judges on several hosts.
$(VENV)/cluster: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[cluster]"
	touch $@

test-long: $(VENV)/installed $(VENV)/samples $(VENV)/extract $(VENV)/cluster $(VENV)/site sandbox browser
	$(BIN)/python -m pytest --timeout=3600 -n 2 --dist loadgroup -m "slow and not gpu and not serial"
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=long -m "hypothesis and not slow and not gpu"
	$(BIN)/python -m pytest --timeout=3600 -m "slow and serial and not gpu"

# On a machine with a CUDA device, in the environment at hand: torch for its driver is not ours to install.
test-gpu:
	$(PYTHON) -m pytest tests/gpu -q

bench-gpu:
	$(PYTHON) -m benchmarks.gpu --skip solutions

# Evaluations of the same code against itself; FILE keeps them, so that a run can be resumed.
bench-gpu-intervals:
	$(PYTHON) -m benchmarks.gpu_intervals sealed,recorded,cuda_cpp,eager,references --file $(or $(FILE),build/gpu-intervals.jsonl)

bench-gpu-solutions:
	$(PYTHON) -m benchmarks.gpu --skip way,repeat,same,cupti

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.language.check

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site in build/site; a broken link or a missing page is an error.
site: $(VENV)/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# docs/diagrams/*.svg of changed sources; needs npm.
diagrams: $(VENV)/installed browser
	PUPPETEER_SKIP_DOWNLOAD=1 $(BIN)/python -m tests.docs.diagrams

# The reference of commands, from the program itself.
docs: $(VENV)/installed
	$(BIN)/python -m tests.docs.commands
	$(BIN)/python -m tests.docs.catalogue

bench: $(VENV)/installed sandbox
	$(BIN)/python -m benchmarks.cpu

bench-agents: $(VENV)/installed sandbox
	$(BIN)/python -m benchmarks.agents

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
