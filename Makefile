# Each target makes the environment that it needs (.venv), and is quick when that is there.
#   make test       unit and integration tests, but of slow ones and of system tests only a random part: minutes
#   make test-all   all tests that need no virtual machine and no container
#   make check      ruff, typos, mypy --strict, documentation without warnings
#   make soak       tests and simulations that are long by nature: make soak MINUTES=30
#   make demo       a folder of files over smc: and over tcp:, side by side
#   make bench      the benchmarks; results go to docs/benchmarks.md
#   make test-lowest     unit tests with the lowest supported versions, and no program on PATH but a shell;
#                   SAMPLE=0, here and elsewhere, leaves out tests that state why they are slow
#   make test-trunk      unit tests with Twisted's trunk, where it can be installed
#   make test-root       the tests that only root can run, and a transfer of 256 MiB while networks are cut
#   make test-torch     torch.distributed over btl, compared with gloo, in .venv-torch
#   make test-compiled, make bench-compiled   the same with the cores compiled by mypyc, in .venv-compiled
#   make test-wheel      unit and integration tests with the installed wheel, in an empty folder, and the pages for new users
#   make reproducible  two builds of the compiled wheel have the same bytes
#   make coverage      the share of lines of ten packages that their unit tests run must not fall
#   make test-compat     streams between processes with this and with earlier versions, which the history has
#   make wheels          compiled wheels for CPython 3.10 to 3.14, by cibuildwheel and a container engine
#   make test-kernel     suites that need a Linux kernel with RDMA, in an emulated guest; DOCS=1 writes the table
#   make test-kernel-ci  a short selection of them, in one guest
#   make test-container  the fabric monitor's container file, built and run by buildah, which it installs where it can
#   make conversations   pairs of processes over tcp: and over ours, which must see the same; DOCS=1 writes the table
#   make simulate   random simulations: make simulate SEEDS=10000 (or MINUTES=5) [FIRST=seed] [GENERATORS="smc btl"]
#   make hostile    peers that break each protocol's rules: make hostile SEEDS=10000 (or MINUTES=1) [FIRST=seed]
#                   [PROTOCOLS="btl btl-groups collector mad smc"], by default all
#   make fuzz       every decoder under atheris, one second each or more: make fuzz SECONDS=600 (or INPUTS=10000000);
#                   UNGUIDED=1 draws inputs at random instead, which needs no atheris
#   make mutants    how many mutants of the protocol cores the fast tests kill
#   make vendor     the libraries of others that the fabric monitor draws with, from the npm registry

PYTHON ?= python3
# Python compiles the modules that are imported; pip would compile all of them, which takes a third of its time.
export PIP_NO_COMPILE := 1
# In some containers it is set; then each process that tests start compiles all its modules, which takes two seconds.
unexport PYTHONDONTWRITEBYTECODE
# Tests that wait for processes leave processors idle, so there is one worker more than processors.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
SLOWEST ?= 0
SEED ?=
SEEDS ?= 1000
FIRST ?=
GENERATORS ?=
PROTOCOLS ?= btl btl-groups btl-groups-shared-memory btl-paths btl-rdma btl-shared-memory collector coordinator \
	mad rdma rsocket smc smc-announcements smc-neighbours smc-shared-memory soft web
SECONDS ?= 30
INPUTS ?=
UNGUIDED ?=
MINUTES ?=
PACKAGE ?=
GROUPS := unit integration system
PACKAGE_TESTS = $(subst /,.,$(wildcard $(foreach group,$(GROUPS),$(PACKAGE:%=txrdma/test/$(group)/%))))
TESTS ?= $(if $(PACKAGE),$(or $(PACKAGE_TESTS),$(error There are no tests of $(PACKAGE))),txrdma.test.unit txrdma.test.integration)
IS_WHOLE = $(if $(PACKAGE),,$(filter file,$(origin TESTS)))
ALL_TESTS = $(TESTS) $(if $(IS_WHOLE),txrdma.test.system)
KERNEL_TESTS = $(if $(filter file,$(origin TESTS)),txrdma.test.system.kernel,$(TESTS))
CONVERSATIONS ?=
ROUTE ?=
REACTOR ?=
DRAWN ?=
BENCH ?=
DOCS ?=
CAPTURE ?=
PATIENCE ?=

# Packages, and the percentage of their lines that the unit tests run, at least: what was measured, but for one.
COVERAGE ?= btl:87 cm:96 commands:87 demo:36 fabric:96 iba:98 kit:97 mad:95 messages:92 \
	monitor:94 pingpong:93 ports:91 sim:96 smc:62 soft:87 streams:89 tap:79 testing:80 unix:64 verbs:65 verify:69

# The tests that have to notice the changes of tools/mutants.json.
MUTANT_TESTS ?= txrdma.test.unit txrdma.test.integration

# The tests that other users skip, in namespaces and beside processes of other users.
ROOT_TESTS := soak.cm.test_cutting integration.cm.test_endpoints integration.soft.test_sharing system.cm.test_cutting \
	system.cm.test_ipv6 system.smc.test_containers system.smc.test_control system.smc.test_cutting system.smc.test_dialing \
	system.smc.test_option_kernel system.smc.test_other_users system.smc.test_preloading system.soft.test_sharedmemory \
	system.test_restricted.SharedMemoryTests system.test_restricted.NamespaceTests

VENV := .venv
COMPILED := .venv-compiled
REFERENCE := docs/_build/html/api
LOWEST := .venv-lowest
TRUNK := .venv-trunk
TORCH := .venv-torch
# Suites of the compiled modules; setup.py has the list of these.
COMPILED_TESTS ?= txrdma.test.unit.btl txrdma.test.unit.cm txrdma.test.unit.smc txrdma.test.unit.soft txrdma.test.unit.unix \
	txrdma.test.unit.verbs txrdma.test.integration.soft txrdma.test.integration.verbs.test_contract
BIN := $(VENV)/bin
PIP = -m pip --disable-pip-version-check install
OPTIONS = --jobs $(JOBS) --slowest $(SLOWEST) $(SAMPLE:%=--sample %) $(SEED:%=--seed %)
RUNTESTS = tools/runtests.py $(OPTIONS)

.PHONY: demo test test-all test-root test-lowest test-trunk test-torch test-compiled test-wheel test-compat coverage reproducible wheels test-kernel test-kernel-ci test-container soak mutants \
	vendor conversations check lint format types docs bench bench-compiled simulate hostile fuzz clean
.DELETE_ON_ERROR:

# With DOCS=1 it is recorded as a picture.
demo: $(VENV)/.has-demo
	@$(if $(DOCS),tools/install $(VENV) pyte && PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python tools/record.py docs/pictures/demo.svg) \
		$(if $(DOCS),python,$(BIN)/python) -m txrdma.demo $(DEMO)

# PACKAGE=smc for all tests of a package, TESTS=txrdma.test.unit.smc for a part, SAMPLE=50 for half of the slow tests,
# SLOWEST=30 to see what takes long.
test: SAMPLE ?= $(if $(IS_WHOLE),4)
test: $(VENV)/.has-test
	@$(BIN)/python $(RUNTESTS) $(ALL_TESTS)

test-all: $(VENV)/.has-browser
	@tools/have-ibsim
	@tools/have-browser
	@PICTURES=$(if $(DOCS),$(CURDIR)/docs/pictures) $(BIN)/python $(RUNTESTS) $(ALL_TESTS)

test-root: $(VENV)/.has-test
	@$(BIN)/python $(RUNTESTS) --label root --folder build/root $(ROOT_TESTS:%=txrdma.test.%)

test-lowest: $(LOWEST)/.has-lowest
	@TXRDMA_EXAMPLES=10 tools/bare $(abspath $(LOWEST))/bin/python $(RUNTESTS) --label lowest --folder build/lowest txrdma.test.unit

test-trunk: $(TRUNK)/.made
	@if tools/have-trunk $(TRUNK)/bin/python; then \
		TXRDMA_EXAMPLES=10 $(TRUNK)/bin/python $(RUNTESTS) --label trunk --folder build/trunk txrdma.test.unit; fi

# torch has hundreds of megabytes, so it has an environment of its own.
test-torch: $(TORCH)/.made
	@if tools/have-torch $(TORCH)/bin/python; then \
		$(TORCH)/bin/python $(RUNTESTS) --label torch --folder build/torch txrdma.test.system.btl.test_torch \
			txrdma.test.system.btl.test_documentation.ProgramTests; fi

# MINUTES=30 for a random choice that takes about as long; without it, everything, which takes hours.
soak: $(VENV)/.has-test
	@$(BIN)/python tools/soak.py $(MINUTES:%=--minutes %) $(SEED:%=--seed %)

# The API reference is rendered, which is enough for pydoctor's complaints; make docs writes it.
check: REFERENCE =
check: lint types docs

lint: $(VENV)/.has-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos

format: $(VENV)/.has-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.has-dev
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --strict --follow-imports silent --cache-dir .mypy_cache/plain txrdma/test/support/typedprogram.py

docs: $(VENV)/.has-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python tools/apidocs.py $(REFERENCE)

bench: $(VENV)/.has-bench
	@$(BIN)/python -m benchmarks $(BENCH)

test-compiled: $(COMPILED)/.installed
	@$(COMPILED)/bin/txrdma --version | grep compiled
	@TXRDMA_EXAMPLES=25 tools/test-installed $(COMPILED)/bin/python $(OPTIONS) --label compiled --folder build/compiled $(COMPILED_TESTS)

# The pure wheel of this checkout, in an environment and a folder without it; PYTHON=python3.13 for another interpreter.
test-wheel: $(VENV)/.has-test
	@rm -rf build/wheel && mkdir -p build/wheel
	@tools/quietly $(BIN)/python -m build --no-isolation --outdir build/wheel .
	@PYTHON="$(PYTHON)" tools/make-venv build/wheel/venv
	@tools/install build/wheel/venv build/wheel/txrdma-*.whl 'hypothesis>=6.100' 'rich>=13' 'PyHamcrest>=2'
	@TXRDMA_EXAMPLES=25 tools/test-installed build/wheel/venv/bin/python $(OPTIONS) --label wheel --folder build/wheel \
		$(if $(filter file,$(origin TESTS)),,$(TESTS))
	@PAGES_WHEELS=$(CURDIR)/build/wheel $(BIN)/python $(RUNTESTS) --label pages --folder build/wheel/pages txrdma.test.system.test_pages

coverage: $(VENV)/.has-dev
	@rm -rf build/coverage && mkdir -p build/coverage
	@TXRDMA_EXAMPLES=10 $(BIN)/python -m coverage run $(RUNTESTS) --label coverage --folder build/coverage/tests txrdma.test.unit
	@$(BIN)/python -m coverage combine -q
	@status=0; for each in $(COVERAGE); do package=$${each%:*}; least=$${each#*:}; \
		printf '%-8s at least %s %%, is ' $$package $$least; \
		$(BIN)/python -m coverage report --format=total --include="txrdma/$$package/*" --fail-under=$$least || status=1; \
	done; exit $$status

# The compiled wheel of the last commit, built twice: the bytes must be equal.
reproducible: $(VENV)/.has-dev
	@tools/reproducible $(BIN)/python

# The versions come from the history; in a shallow clone these tests are skipped.
test-compat: $(VENV)/.has-test
	@$(BIN)/python $(RUNTESTS) --label compat --folder build/compat txrdma.test.system.test_compatibility

# The time of the last commit makes two builds equal.
wheels: $(VENV)/.made
	@tools/install $(VENV) 'cibuildwheel>=3.2'
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m cibuildwheel --platform linux --output-dir dist

# TESTS=txrdma.test.system.kernel.test_... for a part; what it leaves is in build/kernel.
test-kernel: $(VENV)/.has-test
	@$(if $(CAPTURE),LAB_CAPTURE=1) LAB_PATIENCE=$(PATIENCE) $(BIN)/python -m lab.suites $(if $(DOCS),--docs) $(KERNEL_TESTS)

test-kernel-ci: $(VENV)/.has-test
	@LAB_PATIENCE=$(PATIENCE) $(BIN)/python -m lab.suites --ci

# What it builds is in build/container.
test-container: $(VENV)/.has-test
	@tools/have-container
	@CONTAINER=1 CONTAINER_FOLDER=$(CURDIR)/build/container $(BIN)/python tools/runtests.py --label container --jobs 1 txrdma.test.system.container

vendor:
	@tools/vendor

# DRAWN=100 for so many that nobody has thought of, whose first seed the clock says, or FIRST.
# CONVERSATIONS="sizes both-*" ROUTE=rocev2 REACTOR=select for a part; what it leaves is in build/conversations.
conversations: $(VENV)/.has-test
	@$(BIN)/python -m txrdma.testing.streams $(if $(DOCS),--page docs/as-tcp.md) \
		$(ROUTE:%=--route %) $(REACTOR:%=--reactor %) $(DRAWN:%=--drawn %) $(FIRST:%=--first %) -- $(foreach each,$(CONVERSATIONS),'$(each)')

bench-compiled: $(COMPILED)/.has-bench
	@$(COMPILED)/bin/txrdma --version | grep compiled
	@rm -rf $(COMPILED)/benchmarks && cp -r benchmarks $(COMPILED)/
	@cd $(COMPILED) && bin/python -m benchmarks --page ../docs/benchmarks-compiled.md $(BENCH)

simulate: $(VENV)/.has-test
	@$(BIN)/python -m txrdma.testing.simulate $(if $(MINUTES),--minutes $(MINUTES),--seeds $(SEEDS)) \
		$(if $(FIRST),--first $(FIRST)) $(GENERATORS)

hostile: $(VENV)/.has-test
	@$(BIN)/python -m txrdma.testing.simulate $(if $(MINUTES),--minutes $(MINUTES),--seeds $(SEEDS)) \
		$(if $(FIRST),--first $(FIRST)) $(PROTOCOLS:%=hostile-%)

mutants: $(VENV)/.has-mutants
	@test -e build/tests/results.jsonl || $(MAKE) test
	@$(BIN)/python tools/mutants.py run fast $(MUTANT_TESTS)

fuzz: $(VENV)/.has-test
	@$(if $(UNGUIDED),:,$(BIN)/python -c 'import atheris' 2>/dev/null || \
		tools/install $(VENV) --only-binary :all: atheris)
	@$(BIN)/python fuzz/run.py $(if $(UNGUIDED),--unguided) $(if $(INPUTS),--inputs $(INPUTS),--seconds $(SECONDS))

clean:
	rm -rf $(VENV) $(COMPILED) $(LOWEST) $(TRUNK) $(TORCH) .venv-kernel build dist docs/_build _trial_temp* *.egg-info

$(VENV)/.made:
	@PYTHON="$(PYTHON)" tools/make-venv $(VENV)
	@touch $@

# One stamp for each extra; a change of pyproject.toml installs again.
$(VENV)/.has-%: pyproject.toml setup.py | $(VENV)/.made
	@echo "Installing txrdma[$*] into $(VENV)"
	@tools/install $(VENV) -e '.[$*]'
	@touch $@

$(COMPILED)/.made:
	@PYTHON="$(PYTHON)" tools/make-venv $(COMPILED)
	@touch $@

$(COMPILED)/.installed: pyproject.toml setup.py $(shell find txrdma -name '*.py') | $(COMPILED)/.made
	@echo "Installing txrdma with compiled cores into $(COMPILED)"
	@tools/install $(COMPILED) '.[test]' 'mypy>=1.18' 'mypy-zope>=1.0.14'
	@rm -rf build/lib* build/temp*  # modules that are no more would be installed, too
	@TXRDMA_COMPILE=1 tools/quietly $(COMPILED)/bin/python $(PIP) --no-build-isolation --no-deps --force-reinstall .
	@touch $@

$(COMPILED)/.has-bench: $(COMPILED)/.installed
	@# By the name of the package: a path would build it again, without compiling.
	@for extra in bench bench-mpi bench-enet; do $(COMPILED)/bin/python $(PIP) -q "txrdma[$$extra]" >/dev/null 2>&1 || \
		echo "$$extra cannot be installed here: its cases are not measured"; done
	@touch $@

$(LOWEST)/.made:
	@PYTHON="$$(tools/oldest-python $(PYTHON))" tools/make-venv $(LOWEST)
	@touch $@

$(LOWEST)/.has-lowest: pyproject.toml tools/lowest.txt | $(LOWEST)/.made
	@echo "Installing txrdma with the lowest supported versions into $(LOWEST)"
	@tools/install $(LOWEST) -e '.[cli]' 'hypothesis>=6.100' -c tools/lowest.txt
	@touch $@

$(TORCH)/.made:
	@PYTHON="$(PYTHON)" tools/make-venv $(TORCH)
	@touch $@

$(TRUNK)/.made:
	@PYTHON="$(PYTHON)" tools/make-venv $(TRUNK)
	@touch $@
