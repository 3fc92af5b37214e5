# `make` alone lists the targets. Each one that needs the environment builds it.

.PHONY: help env demo test test-next bench seeds lint clean

PYTHON_OF_ENV := .venv/bin/python
export TF_CPP_MIN_LOG_LEVEL ?= 3

help:  ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*##  */\1\t/p' Makefile | expand -t 8

env:  ## builds .venv from the lock of the Python found (PYTHON=... chooses it)
	@requirements/make_env.sh

demo: env  ## trains with DP on real text; leaves runs/demo/report.md
	$(PYTHON_OF_ENV) -m simulations.run_stackoverflow \
	  --config=configs/demo.toml --output_dir=runs/demo --resume

test: env  ## runs the tests (ARGS='-k word' chooses)
	$(PYTHON_OF_ENV) -m pytest tests -q --durations=10 $(ARGS)

test-next: env  ## runs the accounting tests with dp-accounting 0.6
	requirements/test_next.sh

bench: env  ## runs the benchmarks; one JSON line a case
	@$(PYTHON_OF_ENV) -m simulations.bench

seeds: env  ## repeats the demo over several seeds
	$(PYTHON_OF_ENV) -m simulations.seeds \
	  --config=configs/demo.toml --output_dir=runs/seeds

lint: env  ## checks the style
	$(PYTHON_OF_ENV) -m ruff check .

clean:  ## removes .venv, runs and caches
	rm -rf .venv .venv-next runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
