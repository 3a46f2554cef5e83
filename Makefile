# Two commands matter: `make demo` and `make test`. Both work on a fresh machine with Python 3.11 or newer, and set up .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/installed
OLDEST := $(VENV)/botocore/installed
CLIENTS := $(patsubst tests/clients/requirements/%.txt,.venv-clients/%/installed,$(wildcard tests/clients/requirements/*.txt))
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)

define IS_NEW_ENOUGH
import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, and this is " + sys.version.split()[0] + ": say which with make PYTHON=python3.12 ..., after make clean if .venv is there")
endef

define PACKAGES
import sysconfig; print(sysconfig.get_path("purelib"))
endef

# pip's own cache is of no use to a user who may not write it, and its notices are noise.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: bench-peers demo test test-botocore test-clients test-store check generate format bench fuzz soak flagship up down venv clean

demo: venv ## the main job, end to end, on this machine
	$(BIN)/everstep demo

test: venv $(OLDEST) ## the whole default test suite: three at a time what waits for most of its time, and then, on one stack, what needs a whole one
	failed=0; \
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --ignore tests/system $(PYTEST_ARGS) || failed=1; \
	$(BIN)/python -m pytest tests/system $(PYTEST_ARGS) || failed=1; \
	exit $$failed

test-botocore: venv ## the wire suite with the oldest botocore that is supported, and with the newest on the index
	$(BIN)/python -m tests.clients.botocores oldest newest

test-clients: venv ## other people's clients, each in an environment of its own under .venv-clients
	$(MAKE) --no-print-directory -j 2 $(CLIENTS) .venv-clients/moto-server/installed
	$(BIN)/python -m pytest -m clients -n 2 --dist loadfile tests/clients $(PYTEST_ARGS)

test-store: venv ## the object store on a real S3 server, with objects of a gigabyte
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[store-tests]'
	$(BIN)/python -m pytest -m store tests/clients $(PYTEST_ARGS)

check: venv ## what CI runs besides the tests: lint, format, types, import contracts, architecture, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m api.openapi --check
	$(BIN)/python -m api.aws.service_model --check
	$(BIN)/python -m api.rest.own_page --check
	$(BIN)/python -m pytest -q tests/architecture

generate: venv ## writes the files that are made from the code; check fails when one is stale
	$(BIN)/python -m models.states_page docs/states.md
	$(BIN)/python -m api.aws.document > docs/wire.md
	$(BIN)/python -m api.openapi
	$(BIN)/python -m api.aws.service_model
	$(BIN)/python -m api.rest.own_page

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: venv .venv-clients/moto-server/installed bench-peers ## measurements: each claim beside a peer or a limit, in the same run; best on a quiet machine
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.rescale
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.votes
	$(BIN)/python -m benchmarks.reform_growth
	$(BIN)/python -m benchmarks.coordinator
	$(BIN)/python -m benchmarks.gpu_recovery
	$(BIN)/python -m benchmarks.node_loss
	$(BIN)/python -m benchmarks.reactions
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m pytest -m bench -s $(PYTEST_ARGS)

fuzz: venv ## some thousands of requests from the OpenAPI document; EVERSTEP_FUZZ_SEED=... repeats a run
	$(BIN)/python -m pytest -m slow -s tests/api/rest/sagemaker/test_fuzz.py $(PYTEST_ARGS)

soak: venv ## the long runs: thirty rounds of kills in the control plane, twenty demonstrations in a row
	$(BIN)/python -m pytest -m slow -s $(PYTEST_ARGS)

flagship: venv ## one job that is elastic, checkpointless, tiered and on spot nodes, and ten events; EVERSTEP_TEST_SEED=... repeats a run
	$(BIN)/python -m pytest -m slow -n 0 -s tests/system/test_flagship.py $(PYTEST_ARGS)

up: venv
	$(BIN)/everstep up --detach

down: venv
	$(BIN)/everstep down

venv: $(READY)

# torch goes first and alone: it is then there, in the one build that constraints.txt names, when something that depends on it is
# installed, and pip has no reason to fetch another one of several gigabytes.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c '$(IS_NEW_ENOUGH)' # before there is an old .venv, which would be taken the next time
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@$(BIN)/python -c '$(IS_NEW_ENOUGH)'
	$(BIN)/python -m pip install --quiet $(TORCH) -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[server,train,dev]'
	touch $@

$(OLDEST): $(READY) tests/clients/botocores.py
	$(BIN)/python -m tests.clients.botocores --fetch oldest
	touch $@

.venv-clients/moto-server/installed: benchmarks/moto-server.txt $(READY)
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --no-deps --no-compile -r $<
	touch $@

# Each list is whole, and nothing is compiled that may never be imported: it is then a matter of seconds.
.venv-clients/%/installed: tests/clients/requirements/%.txt $(READY)
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --no-deps --no-compile -r $<
	touch $@

# The one build of torch that will do is that of .venv. A path file leads there, after the environment's own packages.
.venv-clients/checkpointing/installed: tests/clients/requirements/checkpointing.txt $(READY)
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --no-deps --no-compile -r $<
	$(BIN)/python -c '$(PACKAGES)' > $(@D)/torch.pth
	mv $(@D)/torch.pth "$$($(@D)/bin/python -c '$(PACKAGES)')"
	touch $@

# Other people's memory checkpoints. One that does not install is skipped, and the table says so.
bench-peers: $(patsubst benchmarks/peers/%.txt,.venv-clients/%/tried,$(wildcard benchmarks/peers/*.txt))

.venv-clients/%/tried: benchmarks/peers/%.txt $(READY)
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --no-deps --no-compile -r $< || rm -f $(@D)/bin/python
	$(BIN)/python -c '$(PACKAGES)' > $(@D)/torch.pth
	test ! -x $(@D)/bin/python || mv $(@D)/torch.pth "$$($(@D)/bin/python -c '$(PACKAGES)')"
	touch $@

clean: ## forget .venv and caches; never a stack's data
	rm -rf $(VENV) .venv-clients build *.egg-info .pytest_cache .mypy_cache .ruff_cache
