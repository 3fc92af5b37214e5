# `make` alone lists the targets. Each one that needs the environment builds it.

.PHONY: help env demo people test quick deep browser fuzz noise races mutants mutants-flower kills docs bench seeds lint dist test-wheel test-extras test-names test-flower clean

PYTHON_OF_ENV := .venv/bin/python
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Whatever the shell says: compiling TensorFlow anew in each process takes 5 s.
export PYTHONDONTWRITEBYTECODE :=

help:  ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*##  */\1\t/p' Makefile | expand -t 8

env:  ## builds .venv from the lock of the Python found (PYTHON=... chooses it)
	@requirements/make_env.sh

demo: env  ## trains with DP on real text; leaves runs/demo/report.md
	$(PYTHON_OF_ENV) -m simulations.run_stackoverflow \
	  --config=configs/demo.toml --output_dir=runs/demo --resume

people: env  ## pre-trains on public text, fine-tunes on people with DP; verifies
	$(PYTHON_OF_ENV) -m pip install -q --disable-pip-version-check --no-deps \
	  --only-binary :all: --require-hashes -r requirements/people.lock
	$(PYTHON_OF_ENV) -m simulations.run_stackoverflow \
	  --config=configs/people_demo.toml --output_dir=runs/people --resume
	.venv/bin/bandmf verify runs/people
	.venv/bin/bandmf verify runs/people/compare/identity

test: env  ## runs each behaviour and each privacy guard (ARGS='-k word' chooses)
	@# More processes than cores end 17 s earlier, and take 36 CPU-seconds more.
	$(PYTHON_OF_ENV) -m pytest tests -q -n $$(nproc) --maxprocesses 4 \
	  --dist loadfile --no-loadscope-reorder --durations=15 $(ARGS)

quick: env  ## runs the tests that need no TFF and take no seconds, in a minute
	$(PYTHON_OF_ENV) -m pytest tests -q --quick -n auto --maxprocesses 4 \
	  --dist worksteal $(ARGS)

deep: env  ## repeats behaviours on more cases, which `make test` leaves out
	$(PYTHON_OF_ENV) -m pytest tests -q --deep -m deep -n auto --maxprocesses 4 \
	  --dist loadfile $(ARGS)

browser: env  ## installs Debian's Chromium if there is none; opens reports in it
	@command -v chromium >/dev/null || \
	  { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
	$(PYTHON_OF_ENV) -m pytest -q -rs tests/report/browser_check_test.py

fuzz: env  ## feeds 10,000 damaged files to what reads files
	BANDMF_FRESH_CASES=1 BANDMF_FUZZ_CASES=10000 \
	  $(PYTHON_OF_ENV) -m pytest tests/*/fuzz_*_test.py -q

noise: env  ## compares 10,000 roundings of every kind of noise with the ideal
	BANDMF_NOISE_PAIRS=10000 $(PYTHON_OF_ENV) -m pytest tests/noise/exact_noise_test.py -q -rs

races: env  ## has two processes write to a ledger at once, 300 times each
	LEDGER_RACES=300 $(PYTHON_OF_ENV) -m pytest tests/ledger/ledger_races_test.py -q

mutants: env  ## changes privacy-critical lines; tests must notice (ARGS='word')
	$(PYTHON_OF_ENV) tests/mutants.py $(ARGS)

mutants-flower:  ## the same for the strategy for Flower (PYTHON=python3.12)
	requirements/test_flower.sh mutants

kills: env  ## kills runs anywhere, each way of driving them (ARGS='--kills=9')
	$(PYTHON_OF_ENV) -m pytest -q tests/run/run_replay_test.py -k killed_run --every-write
	PYTHONPATH=.:tests/helpers $(PYTHON_OF_ENV) tests/kills.py $(ARGS)
	$(PYTHON_OF_ENV) -m simulations.kill_test

docs: env  ## builds the site into build/docs; runs the notebooks in it
	$(PYTHON_OF_ENV) -m sphinx -W --keep-going -b html docs build/docs

bench: env  ## runs the benchmarks; one JSON line a case
	@$(PYTHON_OF_ENV) -m benchmarks.bench

seeds: env  ## repeats the demo over several seeds
	$(PYTHON_OF_ENV) -m simulations.sweep --config=configs/demo_seeds.toml \
	  --out=runs/seeds --resume

lint: env  ## checks format, style and types
	$(PYTHON_OF_ENV) -m ruff format --check .
	$(PYTHON_OF_ENV) -m ruff check .
	$(PYTHON_OF_ENV) -m mypy

# PYTHON is that of the tests, and not that of .venv, which builds the wheel.
test-wheel:  ## tests the core from the wheel, on any Python (PYTHON=...)
	@$(MAKE) --no-print-directory dist PYTHON=
	requirements/test_wheel.sh

test-extras:  ## installs the wheel with each extra, on Python 3.9 to 3.13
	@$(MAKE) --no-print-directory dist PYTHON=
	requirements/test_wheel.sh extras

test-names:  ## tests TFF's names without TFF (PYTHON=python3.12)
	@$(MAKE) --no-print-directory dist PYTHON=
	WITH=federated-language requirements/test_wheel.sh tff/names_test.py

test-flower:  ## tests the strategy for Flower (PYTHON=python3.12)
	requirements/test_flower.sh

dist: env  ## builds the wheel and the source archive into dist/
	rm -rf dist
	$(PYTHON_OF_ENV) -m build --no-isolation
	$(PYTHON_OF_ENV) -m twine check --strict dist/*

clean:  ## removes .venv, runs and caches
	rm -rf .venv .venv-jax .venv-opake .venv-flower runs build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
