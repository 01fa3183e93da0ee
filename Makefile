# `make demo` and `make test` set up all they need, from a clean clone with Python 3.11 and make only.

.DEFAULT_GOAL := help
.PHONY: help setup environments demo tutorials bench figures check foundry test test-all test-next test-pythons test-numpys durations contract faults transcripts lint format \
	fuzz site clean

# Programs of tests import headrace hundreds of times: each would compile it each time where this is set.
unexport PYTHONDONTWRITEBYTECODE

# The main environment has Composer, which fixes torch and the Pythons; .venv-next has the newest torch instead.
PYTHONS := 3.11 3.12 3.10
OTHER_PYTHONS := 3.10 3.13
NEXT_TORCH := torch==2.13.0
FOUNDRY := llm-foundry==0.22.0

STORE := local
FRAMEWORK := both
OUT := demo-output
# Processes that run tests. They are more than the processors, since tests wait for servers, other processes and
# time-outs. Each takes up to 2 GB, with its servers.
JOBS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) * 3 / 2 + 1 )))
PYTEST := -m pytest -n $(JOBS) --dist worksteal --durations 10
# Fewer examples for each property, where the versions of things are all that differs from the main environment.
FEW := --hypothesis-profile few
MANY := --hypothesis-profile many
# What imports torch; the rest knows nothing of its version.
WITH_TORCH := $(addprefix tests/,dataset examples lightning metrics packing test_package.py)

help: ## What there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: .venv/.ready ## The environment of the other commands, in .venv

# Not those that no Python is there for.
environments: .venv-next/.ready ## The environments of `make test-next` and `make test-pythons`
	@status=0; for python in $(OTHER_PYTHONS); do \
		if .ci/find-python $$python > /dev/null; then $(MAKE) --no-print-directory .venv-$$python/.ready || status=1; fi; \
	done; exit $$status

demo: .venv/.ready ## Text to shards to two trainers, a kill -9, a resume, the proof; STORE=s3 for a loopback S3 server
	.venv/bin/headrace demo --store $(STORE) --framework $(FRAMEWORK) --out $(OUT)

# Only tutorials have notebooks there.
tutorials: .venv/.ready ## Each tutorial by its own command, at small size: 3 minutes
	@status=0; for tutorial in $(basename $(wildcard examples/tutorials/*.ipynb)); do \
		echo "== $$tutorial"; .venv/bin/python $$tutorial.py --small || status=1; \
	done; exit $$status

foundry: .venv-foundry/.ready ## LLM Foundry, unmodified, on headrace and on MosaicML Streaming, killed and resumed: the proof
	.venv-foundry/bin/python examples/foundry/prove.py build/foundry

bench: .venv/.ready ## The loaders of headrace and others side by side, with a picture: 1 hour on a quiet machine
	.venv/bin/python -m benchmarks.loading --json bench.json --picture bench.png

figures: .venv/.ready ## The figures of docs/appendix/figures.md from real runs, with their numbers: 20 minutes
	.venv/bin/python -W ignore -m benchmarks.figures all

check: .venv/.ready ## The quickest tests of everything, and ruff on what changed: after each save
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files -o --exclude-standard -- '*.py'); \
	if [ -n "$$changed" ]; then .venv/bin/ruff check $$changed && .venv/bin/ruff format --check $$changed; fi
	.venv/bin/python $(PYTEST) $(FEW) --below 0.1 -m 'not slow'

# With the variables of whoever runs it, which users have, too; `.ci/run` runs it without any.
test: .venv/.ready ## The tests, slow ones excepted, with the servers that they want
	@.ci/servers
	.venv/bin/python $(PYTEST) -m 'not slow'

test-all: .venv/.ready ## All tests
	.venv/bin/python $(PYTEST) $(MANY)

durations: .venv/.ready ## Measure which tests take long, into tests/data/durations.txt
	.venv/bin/python $(PYTEST) -m 'not slow' --write-durations

test-next: .venv-next/.ready ## The tests of what imports torch with its newest version, without Composer and clouds
	.venv-next/bin/python $(PYTEST) $(FEW) --below 1 -m 'not slow and not once and not composer and not s3 and not cloud' $(WITH_TORCH)

# The next Python has its turn after a failure, too.
test-pythons: ## The shorter tests of the core on other Pythons, as far as they are there
	@$(MAKE) --no-print-directory --keep-going $(OTHER_PYTHONS:%=test-python-%)

# numpy's random numbers must not matter: the orders are checked with the oldest numpy that is supported, and the newest.
test-numpys: .venv/.ready ## The tests of the order with the oldest and the newest numpy
	@status=0; for numpy in 'numpy==1.26.*' 'numpy'; do \
		rm -rf build/numpy && .venv/bin/python -m pip install -q --no-deps --target build/numpy "$$numpy" && \
		PYTHONPATH=build/numpy .venv/bin/python -c 'import numpy; print("== numpy", numpy.__version__)' && \
		PYTHONPATH=build/numpy .venv/bin/python $(PYTEST) tests/order tests/testing || status=1; \
	done; exit $$status

test-python-%:
	@if .ci/find-python $* > /dev/null; then \
		$(MAKE) --no-print-directory .venv-$*/.ready && \
		.venv-$*/bin/python $(PYTEST) $(FEW) --below 0.1 \
			--ignore tests/composer --ignore tests/lightning \
			-m 'not slow and not once and not composer and not lightning and not s3 and not cloud'; \
	else \
		echo "Skipped: there is no Python $* here, on PATH or where pyenv and uv keep theirs"; \
	fi

lint: .venv/.ready ## Ruff, pyright and the layers
	@status=0; for check in 'ruff check' 'ruff format --check' pyright lint-imports; do \
		echo "== $$check"; .venv/bin/$$check || status=1; \
	done; exit $$status

format: .venv/.ready ## Format the code
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

contract: .venv/.ready ## The contract's tests on every store, counted into docs/appendix/faults.md
	.venv/bin/python -m tests.support.pages.contract_table docs/appendix/faults.md

faults: .venv/.ready ## What a training sees when its store fails, measured into docs/appendix/faults.md
	.venv/bin/python -m tests.support.pages.fault_matrix docs/appendix/faults.md

transcripts: .venv/.ready ## What the commands of the docs print, into their pages; `headrace demo` excepted
	.venv/bin/python -m tests.support.pages.transcripts \
		$(addprefix docs/,appendix/transcripts.md inspect.md packing.md start_images.md start_llm.md start_parquet.md)

fuzz: .venv/.ready ## Damaged files of every format for SECONDS (600) a parser: only our errors, bounded memory, no hang
	.venv/bin/python -m tests.support.fuzz.fuzz --seconds $(or $(SECONDS),600)

# In .venv if that is there; else in an environment with the extra `site` only.
SITE := $(if $(wildcard .venv/.ready),.venv,.venv-site)
site: $(SITE)/.ready ## The documentation as a site, in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build

clean: ## Remove all that is made here, environments and servers included
	rm -rf .venv .venv-* .servers demo-output tutorial-output build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/.ready: pyproject.toml
	@.ci/environment .venv '$(PYTHONS)' -e '.[dev,composer,recipes,peers,spark,ray,site]'

.venv-next/.ready: pyproject.toml
	@.ci/environment .venv-next '3.11 3.12 3.13 3.10' --pip '$(NEXT_TORCH)' -e '.[dev]'

.venv-site/.ready: pyproject.toml
	@.ci/environment .venv-site '3.11 3.12 3.13 3.10' -e '.[site]'

# LLM Foundry fixes torch, Composer and transformers, and brings MosaicML Streaming 0.12.
.venv-foundry/.ready: pyproject.toml
	@.ci/environment .venv-foundry '3.11 3.12 3.10' '$(FOUNDRY)' -e .

.venv-%/.ready: pyproject.toml
	@.ci/environment .venv-$* '$*' -e '.[dev]'
