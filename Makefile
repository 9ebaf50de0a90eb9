# Every target makes its own environment first; bare `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
RUN ?= runs/demo
SEED ?= 0
# The settings of benchmarks/studies/demo.toml, which repeats the demo with three seeds.
DEMO := --data fashion-scenes --augment gentle --batch-size 128 --epochs 8 --lr 6e-3 --seed $(SEED)
PRIOR := --prior timm:tf_efficientnet_lite0 --prior-size 96
IMAGES ?=
PHOTOS ?=
STUDY ?= headline
PARTS ?=
# The pinned versions. Empty for the newest ones, build/lowest.txt for the lowest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
# One single-threaded process per core; each takes whole files, so that a file's fixtures are made once.
AT_ONCE := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

MATHS := tests/align tests/constrain tests/measure tests/test_types.py tests/test_terms.py tests/test_objective.py \
	tests/test_methods.py tests/test_peers.py tests/test_recipes.py tests/test_layers.py

.PHONY: help pretrain packages quick test tests test-slow fuzz check lint format install package bench study methods docs \
	clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: .venv/installed ## Create .venv and install glf with everything its tests need

.venv/installed: pyproject.toml $(CONSTRAINTS)
	@echo "== creating .venv and installing glf (the first time this takes some minutes: PyTorch is large)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %) --editable '.[dev]'
	@touch $@

.venv/slow: .venv/installed
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %) --editable '.[dev,slow]'
	@touch $@

build/lowest.txt: pyproject.toml
	@$(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet uv
	@build/uv/bin/uv pip compile --quiet --resolution lowest-direct --extra dev pyproject.toml --output-file $@

pretrain: install ## Train simclr, with and without ADC, on bundled images; evaluate both, write a report
	@echo "== 1/3 training simclr on fashion-scenes (10,000 bundled images) into $(RUN)-base"
	@$(BIN)/glf pretrain --method simclr $(DEMO) --out $(RUN)-base --overwrite
	@echo "== 2/3 training simclr+adc: the same, and ADC follows the neighbourhoods of a frozen ImageNet encoder"
	@$(BIN)/glf pretrain --method simclr+adc $(DEMO) $(PRIOR) --out $(RUN) --overwrite
	@echo "== 3/3 evaluating both on the test split, next to raw pixels and the untrained network"
	@$(BIN)/glf evaluate $(RUN) --compare-with $(RUN)-base
	@$(BIN)/glf report $(RUN) --out $(RUN)/report.html

lint: install
	@echo "== ruff and mypy"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

# Some tests render the report in Chromium, and one rebuilds the bundled images from Debian's Fashion-MNIST. Both are
# installed if possible (root, apt); otherwise those tests are skipped with a reason.
packages:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null && [ -d /usr/share/datasets/fashion-mnist ] || { \
		echo "== installing chromium and dataset-fashion-mnist for the tests"; \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium chromium-driver dataset-fashion-mnist >/dev/null || \
		echo "   (not possible here: it needs apt-get and root)"; }

quick: install ## The mathematics: losses against references and peers, methods, layers (under a minute)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" $(AT_ONCE) $(MATHS)

test: lint tests ## Check style and types, run the tests (at most 10 minutes on two cores)

tests: install packages ## The tests alone, also with other versions: CONSTRAINTS= or CONSTRAINTS=build/lowest.txt
	@echo "== tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(AT_ONCE)

check: test ## The same as test

test-slow: .venv/slow packages ## The tests that take minutes each (at most 60 in all)
	@echo "== slow tests"
	@$(BIN)/python -m pytest -m slow

fuzz: install ## Hostile names, files and settings on the command line, drawn by SEED (10 minutes; resumable)
	@echo "== fuzz of the command line with seed $(SEED), into runs/fuzz"
	@$(BIN)/python scripts/fuzz.py --seed $(SEED) --minutes 10 --out runs/fuzz

package: install ## Build source and wheel into dist; a TAG must be the version of the package
	@$(if $(TAG),$(BIN)/python scripts/check_tag.py "$$TAG")
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@ls dist

format: install ## Format the sources and sort their imports
	@$(BIN)/ruff check --quiet --fix . && $(BIN)/ruff format --quiet .

bench: install ## Measure speed against peers and limits, everything but the backbone (25 minutes)
	@PYTHONPATH=benchmarks $(BIN)/python -m speed $(if $(IMAGES),--images $(IMAGES)) $(if $(PHOTOS),--photos $(PHOTOS)) \
		$(if $(PARTS),--only $(PARTS))

study: install ## Run the study STUDY of benchmarks/studies on IMAGES and write its table (hours; resumable)
	@$(BIN)/python benchmarks/study.py $(STUDY) $(if $(IMAGES),--images $(IMAGES))

methods: install ## Train every method on 5,000 images of CIFAR-10, given as IMAGES (2 hours; resumable)
	@$(BIN)/python benchmarks/all_methods.py $(if $(IMAGES),--images $(IMAGES))

docs: install ## Build the documentation into build/docs, with warnings as errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "== open build/docs/index.html"

clean: ## Remove the environment and build products; runs stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
