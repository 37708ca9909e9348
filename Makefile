# Everything runs inside .venv, which the first target builds from nothing.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint slow fuzz browser docs gallery screenshots figures tables reproduction clean

demo: .venv/demo
	$(BIN)/mpvae demo

test: .venv/dev lint
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term

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

.venv/demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing mpvae (torch is the large part: two minutes or so)"
	$(PIP) -e ".[demo,fast,serve]"
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing mpvae and its development tools"
	$(PIP) -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv demo site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
