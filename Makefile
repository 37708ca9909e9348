# Everything runs inside .venv, which the first target builds from nothing.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Of `make test-order`: another one in every run, unless given.
ifndef SEED
SEED := $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')
endif

.PHONY: demo test test-lowest test-order lint slow fuzz browser docs gallery screenshots figures tables \
  reproduction lock sbom audit clean

demo: .venv/demo
	$(BIN)/mpvae demo

test: .venv/dev lint
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term

# The suite on the lowest versions that pyproject.toml allows, in an environment of its own.
test-lowest: .venv-lowest/dev
	.venv-lowest/bin/python -m pytest -n auto --dist worksteal

# The suite in random order (of modules, and of tests within them), texts hashed by another seed.
test-order: .venv/dev
	@echo "seed $(SEED); the same order again: make test-order SEED=$(SEED)"
	PYTHONHASHSEED=$(SEED) $(BIN)/python -m pytest -n auto --random-order-seed=$(SEED)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

# Minutes of training: real data ($MPVAE_DATA or ../shared/data), a worker killed under Ray.
slow: .venv/dev
	$(BIN)/python -m pytest --slow -m slow

# A hundred thousand hostile files for every reader: an hour or so. FUZZ="csv npz" for some.
fuzz: .venv/dev
	$(BIN)/python benchmarks/fuzz.py $(FUZZ)

# What the browser tests need beside Python packages: Chromium, and axe-core from npm.
browser: .venv/dev
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	@test -f .venv/node_modules/axe-core/axe.min.js || \
	  npm install --silent --no-audit --no-fund --prefix .venv axe-core@4

docs: .venv/dev
	$(BIN)/python docs/commands.py
	$(BIN)/mkdocs build --strict --quiet

# Pages of the examples from a run of each, on the real data; minutes.
gallery: .venv/dev
	$(BIN)/python docs/gallery.py

screenshots: .venv/dev browser
	$(BIN)/python docs/screenshots.py

figures: .venv/dev
	$(BIN)/python docs/figures.py

tables: .venv/dev
	$(BIN)/python docs/tables.py

# Every cell of the paper's experiments that is not there yet, then the page; hours from nothing.
reproduction: .venv/dev
	$(BIN)/mpvae benchmark all
	$(BIN)/mpvae benchmark page

# Every version of the tested environment, with the hash of its file.
lock: .venv/dev
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > .venv/tested.txt
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report .venv/report.json \
	  -c .venv/tested.txt ".[dev]"
	$(BIN)/python tools/lock.py < .venv/report.json > requirements.lock

# Bill of materials of the environment, CycloneDX.
sbom: .venv/dev
	$(BIN)/cyclonedx-py environment .venv --pyproject pyproject.toml --of JSON -o sbom.json

# Known vulnerabilities of the locked versions; --strict: what could not be looked up fails too.
audit: .venv/dev
	@$(BIN)/pip-audit --strict --disable-pip --requirement requirements.lock || { echo \
	  "audit: not passed. Either a version has a known vulnerability, told above, or the service" \
	  "that knows them cannot be asked from here; run it where there is a network." >&2; exit 1; }

.venv/demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing mpvae (torch is the large part: two minutes or so)"
	$(PIP) -e ".[demo,fast,serve,onnx]"
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing mpvae and its development tools"
	$(PIP) -e ".[dev]"
	@touch $@

.venv-lowest/dev: pyproject.toml constraints-lowest.txt
	@test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	@echo "installing the lowest versions"
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints-lowest.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv .venv-lowest sbom.json demo site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
