# A thin face on nox: see noxfile.py for what each does.

PYTHON ?= python3
DEPLOYMENT ?= local
OPTIONS ?=
NOX = .venv/bin/nox

.PHONY: demo test dev lint types bench images wheels docs clean

demo: $(NOX)
	@$(NOX) -s demo -- $(DEPLOYMENT)

test: $(NOX)
	@$(NOX) -s tests -- $(OPTIONS)

dev: $(NOX)
	@.venv/bin/pip install -q $(foreach path,$(wildcard packages/* namespaces/*),-e $(path))
	@.venv/bin/pip install -q --group test --group lint --group types

lint types bench images wheels docs: $(NOX)
	@$(NOX) -s $@ -- $(OPTIONS)

$(NOX):
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install -q --upgrade pip nox

clean:
	rm -rf .venv .nox .cache dist site
