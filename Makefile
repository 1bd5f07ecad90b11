# `make demo` and `make test` need Python 3.11+ and make, nothing else prepared.
# PYTHON=python3.12 chooses the Python; without it, scripts/install takes the first one that is new enough.
PYTHON ?=
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test end-to-end unit object-store fuzz floors world soak lock check fix docs clean

help: ## List what make can do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

install: $(STAMP) ## Create the virtual environment and install everything into it

$(STAMP): pyproject.toml constraints.txt scripts/install
	@PYTHON="$(PYTHON)" scripts/install "$(VENV)"
	@touch $@

demo: $(STAMP) ## Watch real training jobs share this machine (under 5 minutes); writes demo-output/
	$(BIN)/optimus demo

test: $(STAMP) ## Run all tests
	$(BIN)/python -m pytest

unit: $(STAMP) ## Run the fast tests only
	$(BIN)/python -m pytest -m "not end_to_end"

end-to-end: $(STAMP) ## Run only the tests that start the real service and real training processes
	$(BIN)/python -m pytest -m end_to_end

# An environment whose packages come before those of the usual one.
define in_front
	$(BIN)/python -m venv --clear $(1)
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')')" \
		> "$$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/usual.pth"
	$(1)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
endef

# In an environment of its own, in front of the usual one: s3fs and the service's kubernetes need different versions of
# python-dateutil. pip says so; nothing there uses kubernetes.
object-store: $(STAMP) ## Test checkpoints against a process that speaks S3, in .venv-s3
	$(call in_front,.venv-s3)
	.venv-s3/bin/python -m pip install --quiet --constraint constraints.txt 's3fs>=2024.2' --group s3-tests
	PYTEST_ADDOPTS= OPTIMUS_TEST_REQUIRE_S3=1 .venv-s3/bin/python -m pytest tests/workers/protocol/test_checkpoints.py \
		tests/workers/protocol/test_object_store.py

# In an environment of its own: nothing else needs schemathesis' many parts. FUZZ_EXAMPLES and FUZZ_SEED may be set.
fuzz: $(STAMP) ## Compare a running service with its OpenAPI document, about five minutes
	$(BIN)/python -m venv --clear .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-fuzz/bin/python -m pip install --quiet --group fuzz
	FUZZ_SCHEMATHESIS=.venv-fuzz/bin/schemathesis $(BIN)/python -m tests.service.fuzz

# In an environment in front of the usual one, too, which has torch. The warnings of old releases beside new ones are not
# ours.
floors: $(STAMP) ## Try the service with the lowest versions that pyproject.toml allows, in .venv-floors
	$(call in_front,.venv-floors)
	$(BIN)/python scripts/floors > .venv-floors/floors.txt
	.venv-floors/bin/python -m pip install --quiet --requirement .venv-floors/floors.txt --constraint constraints.txt \
		--editable '.[service,cli,worker,datasets,simulator]'
	PYTEST_ADDOPTS= .venv-floors/bin/python -m pytest --override-ini filterwarnings= --disable-warnings \
		tests/service/store/test_store_engine.py tests/service/api/test_api_access.py tests/cli/test_real_api.py \
		tests/cli/test_plots.py tests/end_to_end/test_own_code.py::test_own_training_code_by_import_path

HOURS ?= 100
MINUTES ?= 60
world: $(STAMP) ## Simulate the control plane under faults, HOURS=100 hours of clusters from a fresh seed (docs/faults.md)
	$(BIN)/python -m optimus_world --total-hours $(HOURS) $(if $(SEED),--seed $(SEED))

soak: $(STAMP) ## Load with kills of service and database for MINUTES=60 minutes, on SQLite and on PostgreSQL (docs/studies/load.md)
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --database sqlite
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --database postgresql

lock: $(STAMP) ## Write the locks of the images' packages (docker/*.lock); UPGRADE=--upgrade takes the newest
	$(BIN)/python -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv
	UV=.venv-lock/bin/uv PYTHON=$(BIN)/python UPGRADE=$(UPGRADE) scripts/lock

check: $(STAMP) ## Lint, format check, types, import rules, of the page too; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if [ -d web/node_modules ]; then npm run --prefix web --silent check; \
	else echo 'web: skipped, its tools are not installed (npm ci --prefix web)'; fi

fix: $(STAMP) ## Apply the automatic fixes of the linter and the formatter
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## Build the documentation into site/; nothing is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove the virtual environment, caches and demo output
	rm -rf $(VENV) .venv-s3 .venv-fuzz .venv-floors .venv-lock .schemathesis .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-output site
