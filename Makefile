# Each target makes its own .venv when needed, and is quick when it is there.
#   make demo       a folder of files over smc: and over tcp:, side by side
#   make test       everything under trial
#   make test-bare  the same where no program is found but a shell, as if nothing optional were installed
#   make check      ruff, mypy --strict, documentation without warnings
#   make bench      the benchmarks; results go to docs/benchmarks.md
#   make test-compiled, make bench-compiled   the same with the cores compiled by mypyc, in .venv-compiled
#   make test-kernel   the suites that want a Linux kernel with RDMA, in an emulated guest; DOCS=1 writes the table
#   make test-ibsim    the suites that want ibsim, OpenSM and infiniband-diags, which it installs where it can
#   make conversations   pairs of processes over tcp: and over smc:, which have to see the same; DOCS=1 writes the table
#   make test-browser   the suites that want Chromium, and schemathesis, which it installs where it can
#   make test-container   the fabric monitor's container file, built and run by buildah, which it installs where it can
#   make vendor     the libraries of others that the fabric monitor draws with, from the npm registry
#   make simulate   queue pairs and connections on a lossy network: make simulate SEEDS=10000 [FIRST=seed]
#   make mutants    how many of 400 changes to the protocol cores the tests notice
#   make fuzz       every decoder under atheris: make fuzz SECONDS=60

PYTHON ?= python3
# Suites of two processes wait for each other: one more than there are processors keeps these busy.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
SEEDS ?= 1000
FIRST ?=
SECONDS ?= 30
TESTS ?= txrdma
CONVERSATIONS ?=
ROUTE ?=
REACTOR ?=
DRAWN ?=
BENCH ?=
DOCS ?=
CAPTURE ?=
PATIENCE ?=
# What make test runs: all suites but those that have a target of their own.
ELSEWHERE := txrdma/test/kernel txrdma/test/ibsim txrdma/test/browser txrdma/test/container
FOLDERS = $(filter-out $(ELSEWHERE),$(patsubst %/__init__.py,%,$(wildcard txrdma/test/*/__init__.py)))
SUITES = $(subst /,.,$(basename $(wildcard txrdma/test/test_*.py)) $(FOLDERS))
UNIT_TESTS = $(if $(filter file,$(origin TESTS)),$(SUITES),$(TESTS))
IBSIM_TESTS = $(if $(filter file,$(origin TESTS)),txrdma.test.ibsim,$(TESTS))
BROWSER_TESTS = $(if $(filter file,$(origin TESTS)),txrdma.test.browser txrdma.test.monitor.test_rest,$(TESTS))
KERNEL_TESTS = $(if $(filter file,$(origin TESTS)),txrdma.test.kernel,$(TESTS))

# The tests that have to notice the changes of tools/mutants.json.
MUTANT_TESTS ?= $(SUITES)

VENV := .venv
COMPILED := .venv-compiled
COMPILED_TESTS ?= txrdma.test.smc txrdma.test.btl txrdma.test.verbs.test_contract \
	txrdma.test.soft.test_lane txrdma.test.soft.test_lane_messages txrdma.test.soft.test_lane_atomics \
	txrdma.test.soft.test_lane_ports txrdma.test.soft.test_datagrams \
	txrdma.test.soft.test_sharedmemory txrdma.test.soft.test_sharedports txrdma.test.soft.test_capture
BIN := $(VENV)/bin
PIP = -m pip --disable-pip-version-check install

.PHONY: demo test test-bare test-compiled test-kernel test-ibsim test-browser test-container vendor conversations check lint format types docs bench bench-compiled simulate mutants fuzz clean
.DELETE_ON_ERROR:

demo: $(VENV)/.has-demo
	@$(BIN)/python -m txrdma.demo $(DEMO)

test: $(VENV)/.has-test
	@$(BIN)/python tools/trial.py -j$(JOBS) $(UNIT_TESTS)

test-bare: $(VENV)/.has-test
	@tools/bare $(abspath $(BIN))/python tools/trial.py --label bare -j$(JOBS) $(UNIT_TESTS)

check: lint types docs

lint: $(VENV)/.has-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.has-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.has-dev
	$(BIN)/mypy

docs: $(VENV)/.has-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python tools/apidocs.py docs/_build/html/api

bench: $(VENV)/.has-bench
	@$(BIN)/python -m benchmarks $(BENCH)

# From a folder of its own, so that what was installed is found and not this one.
test-compiled: $(COMPILED)/.installed
	@cd $(COMPILED) && bin/python ../tools/trial.py --label compiled -j$(JOBS) $(COMPILED_TESTS)

# TESTS=txrdma.test.kernel.test_... for a part; what it leaves is in build/kernel.
test-kernel: $(VENV)/.has-test
	@$(if $(CAPTURE),LAB_CAPTURE=1) LAB_PATIENCE=$(PATIENCE) $(BIN)/python -m lab.suites $(if $(DOCS),--docs) $(KERNEL_TESTS)

test-ibsim: $(VENV)/.has-test
	@tools/have-ibsim
	@IBSIM=1 $(BIN)/python tools/trial.py --label ibsim -j$(JOBS) $(IBSIM_TESTS)

# What it leaves is in build/browser; DOCS=1 makes the pictures of the documentation anew.
test-browser: $(VENV)/.has-browser
	@tools/have-browser
	@BROWSER=1 BROWSER_FOLDER=$(CURDIR)/build/browser PICTURES=$(if $(DOCS),$(CURDIR)/docs/pictures) $(BIN)/python tools/trial.py --label browser -j1 $(BROWSER_TESTS)

# What it builds is in build/container.
test-container: $(VENV)/.has-test
	@tools/have-container
	@CONTAINER=1 CONTAINER_FOLDER=$(CURDIR)/build/container $(BIN)/python tools/trial.py --label container -j1 txrdma.test.container

vendor:
	@tools/vendor

# DRAWN=100 for so many that nobody has thought of, whose first seed the clock says, or FIRST.
# CONVERSATIONS="sizes both-*" ROUTE=rocev2 REACTOR=select for a part; what it leaves is in build/conversations.
conversations: $(VENV)/.has-test
	@$(BIN)/python -m txrdma.testing.streams $(if $(DOCS),--page docs/as-tcp.md) \
		$(ROUTE:%=--route %) $(REACTOR:%=--reactor %) $(DRAWN:%=--drawn %) $(FIRST:%=--first %) -- $(foreach each,$(CONVERSATIONS),'$(each)')

bench-compiled: $(COMPILED)/.installed
	@rm -rf $(COMPILED)/benchmarks && cp -r benchmarks $(COMPILED)/
	@cd $(COMPILED) && bin/python -m benchmarks --page ../docs/benchmarks-compiled.md $(BENCH)

simulate: $(VENV)/.has-test
	@$(BIN)/python -m txrdma.testing.verbs.simulate --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))
	@$(BIN)/python -m txrdma.testing.btl.simulate --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))
	@$(BIN)/python -m txrdma.testing.smc.simulate --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))
	@$(BIN)/python -m txrdma.testing.smc.simulate --route shared-memory --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))
	@$(BIN)/python -m txrdma.testing.smc.simulate --route two-ports --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))

mutants: $(VENV)/.has-mutants
	@$(BIN)/python tools/mutants.py run fast $(MUTANT_TESTS)

fuzz: $(VENV)/.has-test
	@$(BIN)/python fuzz/run.py --install --seconds $(SECONDS)

clean:
	rm -rf $(VENV) $(COMPILED) .venv-kernel build dist docs/_build _trial_temp* *.egg-info

$(VENV)/.made:
	@PYTHON="$(PYTHON)" tools/make-venv $(VENV)
	@touch $@

# One stamp for each extra; a change of pyproject.toml installs again.
$(VENV)/.has-%: pyproject.toml setup.py | $(VENV)/.made
	@echo "Installing txrdma[$*] into $(VENV)"
	@tools/quietly $(BIN)/python $(PIP) -e '.[$*]'
	@touch $@

$(COMPILED)/.made:
	@PYTHON="$(PYTHON)" tools/make-venv $(COMPILED)
	@touch $@

$(COMPILED)/.installed: pyproject.toml setup.py $(shell find txrdma -name '*.py') | $(COMPILED)/.made
	@echo "Installing txrdma with compiled cores into $(COMPILED)"
	@tools/quietly $(COMPILED)/bin/python $(PIP) '.[test,bench]' 'mypy>=1.18' 'mypy-zope>=1.0.14'
	@for extra in bench-mpi bench-enet; do $(COMPILED)/bin/python $(PIP) -q ".[$$extra]" >/dev/null 2>&1 || \
		echo "$$extra is not to be had here: what it is for will not be measured"; done
	@rm -rf build/lib* build/temp*  # modules that are no more would be installed, too
	@TXRDMA_COMPILE=1 tools/quietly $(COMPILED)/bin/python $(PIP) --no-build-isolation --no-deps --force-reinstall .
	@touch $@
