# The two main commands are `make reproduce-table2` and `make test`; both set up the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST := $(VENV)/.ready-test
DEV := $(VENV)/.ready-dev
PYTEST := $(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations 15
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# A variable that is misspelt, or that a target's command does not take, would be ignored and something else run: five
# rows on the embedded set, say, instead of one on CROHME.
KNOWN := PYTHON CROHME RESULTS PRESET RECIPES SEEDS YEARS FORCE EPOCHS JOBS PTB REASON OPTIONS
named := $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name)))
ifneq ($(filter-out $(KNOWN),$(named)),)
$(error there is no variable $(filter-out $(KNOWN),$(named)); `make help` lists them, and OPTIONS= takes all options of a command)
endif
others = $(filter-out PYTHON $(1),$(foreach name,$(named),$(if $($(name)),$(name))))
takes = $(if $(call others,$(1)),$(error make $@ does not take $(call others,$(1))))
options = $(foreach name,$(1),$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) "$($(name))"))
given = $(call takes,$(1) $(2) OPTIONS)$(call options,$(1)) $(OPTIONS)
force = $(if $(filter-out 0,$(FORCE)),--force)

.NOTPARALLEL: # all targets share one environment
.PHONY: help setup setup-dev reproduce-table2 reproduce-lm tune crohme data test test-services lint types contracts check format tables figures evaluate notebooks report draw scoreboard doctor regress regress-update faults mlflow-ui bench release-check lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  %-18s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  variables: CROHME=data.zip  PRESET=small (hmerbench ls lists all)  RECIPES='bttr comer-fusion'  SEEDS='7 8'"
	@echo "             YEARS='2014 2019'  FORCE=1 (retrain)  EPOCHS=9  RESULTS=folder  JOBS=2 (concurrent runs)"
	@echo "             OPTIONS='--engine ray --cpus 4' (anything else that the command of a target takes: hmerbench COMMAND --help)"

setup: $(READY) ## create .venv from requirements.lock (again when it changes)

setup-dev: $(DEV) ## add what tests, checks and --engine ray need (requirements-{test,dev}.lock); make test adds the former itself

$(READY): requirements.lock requirements-torch.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is required: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) (once; takes a few minutes)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --require-hashes --no-deps -r requirements.lock
	@$(INSTALL) -r requirements-torch.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(TEST): $(READY) requirements-test.lock
	@$(INSTALL) --require-hashes --no-deps -r requirements-test.lock
	@touch $@

$(DEV): $(TEST) requirements-dev.lock
	@$(INSTALL) --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

reproduce-table2: $(READY) ## the main job: train, recognize, score and log every row, then write the tables
	@$(BIN)/hmerbench reproduce $(call given,CROHME RESULTS PRESET YEARS EPOCHS RECIPES SEEDS JOBS,FORCE) $(force)

reproduce-lm: $(READY) ## train and test language models on the text in PTB=folder (without it: LaTeX of training captions)
	@$(BIN)/hmerbench reproduce-lm $(call given,PTB CROHME RESULTS RECIPES SEEDS JOBS,FORCE) $(force)

tune: $(READY) ## tune settings on held-out data (OPTIONS='--recipe bttr --trials 40 --workers 2')
	@$(BIN)/hmerbench tune $(call given,CROHME RESULTS PRESET)

crohme: $(READY) ## download CROHME as published by CoMER's authors (research license) to data/crohme.zip
	@$(BIN)/hmerbench crohme $(call given)

data: $(READY) ## verify the archive CROHME= (default: the embedded set) and describe its contents
	@$(BIN)/hmerbench data $(call given,CROHME RESULTS)

test: $(TEST) ## run the tests that need nothing but Python
	@$(call takes,CROHME)$(PYTEST)

test-services: $(DEV) ## run those that also need PostgreSQL, Chromium or Ray
	@$(call takes,CROHME)$(PYTEST) -m services

lint: $(DEV) ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(DEV) ## pyright
	@$(BIN)/pyright --warnings

contracts: $(DEV) ## import-linter: layers and import cycles
	@$(BIN)/lint-imports

check: lint types contracts test test-services ## lint, types, contracts and all tests

format: $(DEV) ## fix and format with ruff
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

tables: $(READY) ## regenerate results/table*, TABLES.md, CLAIMS.md, … and README's tables from results/reproduced/
	@$(BIN)/hmerbench tables $(call given,RESULTS)

figures: $(READY) ## regenerate results/figures/ from the committed results; CROHME= adds its Fig. 4 to results/local/
	@$(call takes,CROHME RESULTS)$(BIN)/hmerbench figures $(call options,RESULTS)
	@$(BIN)/hmerbench attention $(call options,RESULTS)
	@$(if $(CROHME),$(BIN)/hmerbench attention $(call options,CROHME RESULTS))

evaluate: $(READY) ## recognize CROHME= with the committed weights and compare scores (RECIPES= YEARS=)
	@$(BIN)/hmerbench evaluate $(call given,CROHME RESULTS RECIPES YEARS)

notebooks: $(READY) ## execute the notebooks in place (CROHME=: copies in results/local/notebooks/, which show its images)
	@$(call takes,CROHME)$(if $(CROHME),CROHME="$$(realpath "$(CROHME)")") $(BIN)/python notebooks/execute.py

report: $(READY) ## write the HTML report results/report/index.html: tables, figures, cost, every expression
	@$(BIN)/hmerbench report $(call given,CROHME RESULTS)

draw: $(if $(findstring --replay,$(OPTIONS)),$(DEV),$(TEST)) ## write a page to draw on, which reads formulas in the browser: results/local/draw/index.html (npm fetches its runtime)
	@$(BIN)/hmerbench draw $(call given,RESULTS)

scoreboard: $(READY) ## score published systems under one signature: results/scoreboard.{csv,md}, leaderboard.json (CROHME= OPTIONS='--systems folder')
	@$(if $(CROHME),,$(error give CROHME=data.zip: the scoreboard is scored on its test sets))
	@$(BIN)/hmerbench scoreboard score $(call given,CROHME)

regress: $(READY) ## compare scores and metrics of a short, fixed job with results/baseline.json (all of them with CROHME=)
	@$(BIN)/hmerbench regress $(call given,CROHME)

regress-update: $(READY) ## make the measurements of regress the new baseline: REASON='why it changes'; OPTIONS='--record 20' retrains
	@$(BIN)/hmerbench regress --update --reason "$$REASON" $(call given,CROHME,REASON)

faults: $(DEV) ## plant faults one by one: the regression gate or a test must see each; results/faults.md (minutes)
	@$(call takes,CROHME)$(BIN)/python -m pytest -q -m faults tests/regression_gate/test_faults.py

release-check: ## in an empty clone of HEAD: the CI job, then README's commands but make's (an hour; CROHME=)
	@$(call takes,CROHME)clone=$$(mktemp -d)/hmerbench && git clone --quiet --depth 1 "file://$(CURDIR)" "$$clone" && cd "$$clone" && \
	  MAKEFLAGS= $(if $(CROHME),CROHME="$(abspath $(CROHME))") .ci/run && $(BIN)/python -m pytest -q -m release tests/test_documents.py && \
	  du -sh "$$clone/.git" "$$clone/results" && rm -rf "$$clone"

doctor: $(READY) ## check versions, devices, data, scorer, tracking and disk space
	@$(BIN)/hmerbench doctor $(call given,PTB CROHME RESULTS)

mlflow-ui: $(READY) ## serve the MLflow UI on 127.0.0.1 (RESULTS=results/local/embedded for runs on the embedded set)
	@$(BIN)/hmerbench mlflow-ui $(call given,RESULTS)

bench: $(READY) ## time plain and fast training and search on a quiet machine: results/speed/ (10 min)
	@$(BIN)/hmerbench bench $(call given,RESULTS)

lock: ## resolve the dependencies of pyproject.toml again (see CONTRIBUTING.md)
	.ci/lock $(PYTHON)

clean: ## remove caches; keeps results and .venv
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .hypothesis build hmerbench.egg-info
	find benchmarks models evaluation tests -name __pycache__ -type d -exec rm -rf {} +
