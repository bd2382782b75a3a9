# Needs Python 3.11 or newer and make; everything else goes into .venv.

PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(python) -c 'import ensurepip, sys; sys.version_info >= (3, 11) and print("$(python)")' 2>&1 | grep -x '$(python)')))
BIN = .venv/bin

.PHONY: demo serve test test-all bench torment mutants django-tests lint types messages docs dist
.DELETE_ON_ERROR:

demo: .venv/demo.stamp
	$(BIN)/python manage.py demo

# make serve PORT=9000
serve: .venv/demo.stamp
	$(BIN)/python manage.py serve $(if $(PORT),--port $(PORT))

# Each test once, in minutes. ARGS go to pytest: make test ARGS="tests/upkeep -k walk"
test: .venv/test.stamp
	$(BIN)/python -m tests $(ARGS)

# Each test, the slow ones too, on each database, Redis and kind of user key
test-all: .venv/test.stamp
	$(BIN)/python -m tests --all $(ARGS)

# What counting costs, beside what else a site could do: make bench QUICK=1; make bench ARGS=--write for the docs
bench: .venv/bench.stamp
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(ARGS)

# A fault suite on PostgreSQL, MySQL and MariaDB: make torment SECONDS=3600
torment: .venv/test.stamp
	$(BIN)/python -m tests.torment --seconds $(or $(SECONDS),60) $(ARGS)

# Which changes of the core no test notices: make mutants FILES="$(git diff --name-only main)"
mutants: .venv/test.stamp
	$(BIN)/python -m tests.mutants $(FILES)

# Django's own tests with counters on their models, on SQLite, PostgreSQL and MySQL: make django-tests ARGS="--part"
django-tests: .venv/test.stamp
	$(BIN)/python -m tests.django_suite $(ARGS)

# The documentation as a site, in build/docs.
docs: .venv/docs.stamp
	$(BIN)/sphinx-build -q -W --keep-going -c docs . build/docs
	@echo build/docs/index.html

# The packages of a release: make dist PROJECT_URL=https://… makes the links of the README absolute.
dist: .venv/dist.stamp
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

lint: .venv/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/types.stamp
	$(BIN)/mypy

# Needs GNU gettext. What is new is empty in each locale/*/LC_MESSAGES/django.po: translate it, and run this again.
messages: .venv/demo.stamp
	for app in notifications_counter notifications_counter/inbox demo_project; do \
		cd $(CURDIR)/$$app && \
		$(CURDIR)/$(BIN)/python -m django makemessages --all --ignore inbox --no-obsolete --no-wrap --add-location file && \
		$(CURDIR)/$(BIN)/python -m django compilemessages || exit 1; \
	done

# The dependency group of the target's name, for which Debian 12's pip is too old. Only what is imported is compiled.
.venv/%.stamp: pyproject.toml | $(BIN)/python
	@echo 'Installing into .venv, which takes half a minute or more …'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable . --group $*
	touch $@

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or newer with ensurepip is needed (on Debian: python3-venv).' >&2; exit 1; }
	$(PYTHON) -m venv .venv
