# Two commands do everything: `make reproduce-table2` and `make test`. Both set the environment up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SHELL := /bin/bash
.DEFAULT_GOAL := help

# What the main job runs on; all may be left out.
CROHME ?=
PRESET ?=
RECIPES ?=
SEEDS ?=
YEARS ?=
FORCE ?=
MINUTES ?=
RESULTS ?=
# Where runs are placed (local, or ray with so many CPUS and GPUS each), and what tuning does.
ENGINE ?=
JOBS ?=
CPUS ?=
GPUS ?=
RECIPE ?=
TRIALS ?=
WORKERS ?=
SPACE ?=
STORAGE ?=
ATTENTION ?=
choices = $(if $(CROHME),--crohme "$(CROHME)") $(if $(RESULTS),--results "$(RESULTS)")
spending = $(if $(PRESET),--preset "$(PRESET)") $(if $(RECIPES),--recipes "$(RECIPES)") $(if $(SEEDS),--seeds "$(SEEDS)") \
	$(if $(YEARS),--years "$(YEARS)") $(if $(filter-out 0,$(FORCE)),--force) $(if $(MINUTES),--minutes "$(MINUTES)")
placing = $(if $(ENGINE),--engine "$(ENGINE)") $(if $(CPUS),--cpus "$(CPUS)") $(if $(GPUS),--gpus "$(GPUS)")
tuning = $(if $(RECIPE),--recipe "$(RECIPE)") $(if $(PRESET),--preset "$(PRESET)") $(if $(TRIALS),--trials "$(TRIALS)") \
	$(if $(WORKERS),--workers "$(WORKERS)") $(if $(SPACE),--space "$(SPACE)") $(if $(STORAGE),--storage "$(STORAGE)")

.PHONY: help setup reproduce-table2 tune crohme data test lint types contracts check format tables figures evaluate notebooks report doctor regress regress-update mlflow-ui bench gpu-check bench-scoring timings lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  %-18s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  variables: CROHME=data.zip  PRESET=smoke|brief|laptop|ink|whole|hour|paper|fast  RECIPES='bttr comer-fusion'  SEEDS='7 8'"
	@echo "             YEARS='2014 2019'  FORCE=1 (train again)  MINUTES=9 (fits the epochs)  RESULTS=folder  JOBS=2 (side by side)"

setup: $(READY) ## make .venv from the lock, once (again when the lock changes)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) (once, a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

reproduce-table2: $(READY) ## the main job: train, recognize, score and log every row, then the tables
	@$(BIN)/python -m benchmarks reproduce $(choices) $(spending) $(if $(JOBS),--jobs "$(JOBS)") $(placing)

tune: $(READY) ## look for better settings (RECIPE= PRESET= TRIALS=16 WORKERS=2 SPACE=file STORAGE=url), on held-out data
	@$(BIN)/python -m benchmarks tune $(choices) $(tuning) $(placing)

crohme: $(READY) ## download CROHME as the authors of CoMER publish it (research license) to data/crohme.zip
	@$(BIN)/python -m benchmarks crohme

data: $(READY) ## verify the archive CROHME= (or the embedded set) and say what is in it
	@$(BIN)/python -m benchmarks data $(choices)

test: $(READY) ## run the tests
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadgroup

lint: $(READY) ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## pyright
	@$(BIN)/pyright --warnings

contracts: $(READY) ## data goes one way: import-linter
	@$(BIN)/lint-imports

check: lint types contracts test ## all of the above

format: $(READY) ## let ruff format
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

tables: $(READY) ## write the committed results/table*.{csv,md,tex} again from results/reproduced/
	@$(BIN)/python -m benchmarks tables

figures: $(READY) ## write results/figures/ again from what is committed under results/; CROHME= adds its Fig. 4 to results/local/
	@$(BIN)/python -m benchmarks figures
	@$(BIN)/python -m benchmarks attention
	@$(if $(CROHME),$(BIN)/python -m benchmarks attention --crohme "$(CROHME)")

evaluate: $(READY) ## recognize CROHME= with the committed weights and compare with the committed scores (RECIPES= YEARS=)
	@$(BIN)/python -m benchmarks evaluate $(choices) $(if $(RECIPES),--recipes "$(RECIPES)") $(if $(YEARS),--years "$(YEARS)")

notebooks: $(READY) ## run the notebooks as notebooks (CROHME= or the embedded set): results/local/notebooks/*.ipynb
	@mkdir -p results/local/notebooks
	@for name in notebooks/*.py; do $(BIN)/python -m jupytext --quiet --to ipynb --output results/local/notebooks/$$(basename $$name .py).ipynb $$name; done
	@$(if $(CROHME),CROHME="$(abspath $(CROHME))") PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m jupyter execute --inplace results/local/notebooks/*.ipynb
	@ls results/local/notebooks/*.ipynb

report: $(READY) ## write the page results/report/index.html: tables, figures, cost, every expression (ATTENTION=n)
	@$(BIN)/python -m benchmarks report $(choices) $(if $(ATTENTION),--attention "$(ATTENTION)")

regress: $(READY) ## compare scores and metrics of a fixed, quick job with results/baseline.json (CROHME= for all of it)
	@$(BIN)/python -m benchmarks regress $(if $(CROHME),--crohme "$(CROHME)")

regress-update: $(READY) ## take what regress measures as the new baseline: REASON='why it may differ', RECORD=20 trains again
	@$(BIN)/python -m benchmarks regress --update --reason "$(REASON)" $(if $(CROHME),--crohme "$(CROHME)") \
		$(if $(RECORD),--record "$(RECORD)")

doctor: $(READY) ## versions, devices, data, disk
	@$(BIN)/python -m benchmarks doctor $(choices)

mlflow-ui: $(READY) ## look at the logged runs, on 127.0.0.1 alone (RESULTS=results/local/embedded for the embedded set's)
	@$(BIN)/python -m benchmarks mlflow-ui $(if $(RESULTS),--results "$(RESULTS)") $(if $(PORT),--port "$(PORT)")

bench: $(READY) ## time training and search, plain and fast side by side, on a quiet machine: results/speed/ (10 min)
	@$(BIN)/python -m benchmarks speed $(if $(CROHME),--crohme "$(CROHME)")

gpu-check: $(READY) ## on a new GPU, five minutes: CUDA tests, steps, a search of 2014 (CROHME=), switches: results/speed/gpu.csv
	@$(BIN)/python -m benchmarks gpu-check $(if $(CROHME),--crohme "$(CROHME)") $(if $(RESULTS),--results "$(RESULTS)")

timings: $(READY) ## time to accuracy of the committed runs: results/speed/training.csv
	@$(BIN)/python -m benchmarks timings $(if $(RESULTS),--results "$(RESULTS)")

bench-scoring: $(READY) ## time the scoring of the test sets of CROHME= (OFFICIAL=checkout of Green-Wood/CoMER: beside its scripts)
	@$(if $(OFFICIAL),LgEvalDir="$(abspath $(OFFICIAL))/lgeval" Convert2SymLGDir="$(abspath $(OFFICIAL))/convert2symLG") \
	  $(if $(OFFICIAL),LGEVAL_BIN="$(abspath $(OFFICIAL))/convert2symLG:$(abspath $(OFFICIAL))/lgeval/bin") \
	  $(BIN)/python -m evaluation bench $(if $(CROHME),"$(CROHME)")

lock: ## solve the dependencies of pyproject.toml again (see CONTRIBUTING.md)
	rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	.lock-venv/bin/pip install --quiet 'setuptools>=77' torch==2.13.0 '.[suite,ray,dev]'
	{ echo "# Made by 'make lock' with $$(.lock-venv/bin/python --version). Exact pins, no local versions:"; \
	  echo "# torch brings the CUDA packages that belong to it where it wants any."; \
	  .lock-venv/bin/pip freeze --all | sed 's/+[a-z0-9.]*$$//' | grep -viE '^(pip|hmerbench|nvidia-.*|cuda-.*|triton)( @|==)'; } > requirements.lock
	rm -rf .lock-venv build hmerbench.egg-info

clean: ## remove caches; results and .venv stay
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .hypothesis build hmerbench.egg-info
	find benchmarks models evaluation tests -name __pycache__ -type d -exec rm -rf {} +
