# The few verbs that everyone uses. Each sets up what it needs.

SHELL := /bin/sh
# llama.cpp for this machine's instruction sets; see tools/cpu-env.
CARGO := tools/with-cpu-env cargo
WORLD = "$${CARGO_TARGET_DIR:-target}/release/replica-world"
PORT ?= 8080
ARGS ?=
MODEL =
SECONDS ?= 60
TARGET ?=
# Where tools/setup installs it if the machine has none.
DENY := PATH="$$PATH:$(CURDIR)/.venv/bin" cargo deny

.PHONY: help run test test-all test-rust test-web test-e2e soak-models world chaos test-clients test-agents test-python-client test-models test-engines held-out web lint lint-text doc advisories fuzz loom miri sanitize probe portable dist release test-dist sbom spec fmt bench results results-tables models setup clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Build and serve the bundled model, or MODEL=smollm2: page and API on http://127.0.0.1:8080 (PORT=…, ARGS=…)
	@tools/setup build
	$(CARGO) build --release --locked -p loquent
	@$(if $(MODEL),model=$$(tools/models $(MODEL)) &&) tools/with-cpu-env sh -c \
		'exec "$${CARGO_TARGET_DIR:-target}/release/loquent" serve --port $(PORT) "$$@" $(ARGS)' \
		serve $(if $(MODEL),-m "$$model")

test: ## Set up and run the tests
	@tools/setup build
	@# What the tests need comes over the network while they are compiled.
	tools/setup test e2e & setup=$$!; \
		$(CARGO) test --workspace --locked --no-run; built=$$?; \
		wait $$setup && exit $$built
	$(MAKE) --no-print-directory test-rust
	$(MAKE) --no-print-directory test-web
	$(MAKE) --no-print-directory test-e2e

test-all: ## All tests, the slow ones too, further clients, three models under load, every fuzz target
	LOQUENT_TESTS=all $(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-clients
	$(MAKE) --no-print-directory soak-models SECONDS=60
	$(MAKE) --no-print-directory fuzz SECONDS=10

test-rust: ## Unit, property and simulation tests
	@tools/setup build test
	tools/with-cpu-env tools/test-rust

test-web: ## The TypeScript client and the pages: wire vectors, seeded channels, what the server embeds
	@tools/web test

web: ## Build the TypeScript client and the pages (web/page)
	@tools/web build

test-e2e: ## The real binary with openai-python, openai-node and browsers
	$(CARGO) test --workspace --locked --no-run --quiet --test loquent
	tools/e2e

soak-models: ## Three models under mixed load where memory holds two, for SECONDS=600
	@tools/setup build e2e
	$(CARGO) build --locked --quiet -p loquent -p shape-model
	LOQUENT_SOAK_S=$(or $(SECONDS),600) LOQUENT_BIN=target/debug/loquent \
		.venv/bin/python -m pytest -q -s tests/e2e/test_models.py -k mixed_load

world: ## Simulated replicas under faults, from SEEDS=5000 seeds, FIRST=0 the first; or the history of one, SEED=7 (docs/world.md)
	@tools/setup build
	$(CARGO) build --release --locked --quiet -p loquent-world
	$(if $(SEED),$(WORLD) $(SEED),tools/worlds.py $(WORLD) $(or $(FIRST),0) $(or $(SEEDS),5000) $(ARGS))

chaos: ## Three replicas under faults drawn from a seed, for SECONDS=60 (SEED=… ARGS='--faults kill,term'; docs/chaos.md)
	@tools/setup build e2e
	$(CARGO) build --release --locked --quiet -p loquent
	@tools/with-cpu-env sh -c 'LOQUENT_BIN="$${CARGO_TARGET_DIR:-target}/release/loquent" PYTHONPATH=tools exec \
		.venv/bin/python -m chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)'

test-clients: ## The real binary with further unmodified clients, which are large (useChat, LangChain, …)
	@tools/setup build e2e
	$(CARGO) build --locked --quiet -p loquent
	tools/clients

test-agents: ## The real binary with unmodified coding agents and SDKs, which are large (ARGS=-k codex)
	@tools/setup build e2e
	$(CARGO) build --release --locked --quiet -p loquent
	tools/agents $(ARGS)

test-models: ## The real binary with two trained models (fetched, 350 MB), against llama.cpp's server (ARGS=-m quick)
	@tools/setup build e2e
	$(CARGO) build --release --locked --quiet -p loquent
	tools/test-models $(ARGS)

test-engines: ## The real binary before vLLM and llama.cpp's server, installed (8 GB), with SmolLM2 (ARGS='-k leaves')
	@tools/setup build e2e
	$(CARGO) build --release --locked --quiet -p loquent
	tools/test-engines $(ARGS)

test-python-client: ## Build the Python client's wheel, and openai, anthropic and LangChain over bad paths
	@tools/setup build
	$(CARGO) build --locked --quiet -p loquent
	tools/python-client

lint: lint-text ## Formatting, clippy, rustdoc, licences of packages, Python, shell, TypeScript, workflows
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(MAKE) --no-print-directory doc

lint-text: ## What of lint compiles nothing
	@tools/setup build lint
	cargo fmt --all --check
	$(DENY) check licenses bans sources
	tools/lint/run

doc: ## The documentation of the crates, in target/doc; a warning is a failure
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

advisories: ## Check the dependencies for known faults (fetches the RustSec database)
	@tools/setup lint
	$(DENY) check advisories

fuzz: ## Fuzz every parser of foreign bytes, each for SECONDS=60 (TARGET=… for one)
	tools/with-cpu-env tools/fuzz $(SECONDS) $(TARGET)

loom: ## Explore every order in which the threads of our own queues, channels and permits can meet
	tools/loom

miri: ## Run the tests of protocol, scheduler and formats in Miri (ARGS=-E 'test(gguf)')
	@tools/setup build test miri
	tools/miri $(ARGS)

sanitize: ## Run the tests of engine and kernels, llama.cpp included, with AddressSanitizer and ThreadSanitizer
	@tools/setup build test sanitize
	tools/sanitize address $(ARGS)
	tools/sanitize thread $(ARGS)

held-out: ## Run llama.cpp's server tests, from its source, against the binary (LLAMA_CPP=DIR, ARGS=…)
	@tools/setup build
	$(CARGO) build --release --locked --quiet -p loquent
	tools/held-out $(LLAMA_CPP) $(ARGS)

probe: ## Run third-party tools against the binary and write docs/probes.md (ONLY=h2spec,…)
	@tools/setup build probe
	$(CARGO) build --locked --quiet -p loquent
	tools/probe $(if $(ONLY),--only $(ONLY)) $(ARGS)

portable: ## Build the binary that runs on other machines too, in target/dist/bin (TARGET=…)
	tools/portable $(TARGET)

sbom: ## Write what the binary is built from to target/loquent.cdx.json (CycloneDX)
	tools/sbom

spec: ## Build the protocol's Internet-Draft as text and HTML in target/spec
	@tools/setup spec
	@tools/spec

fmt: ## Format the code
	cargo fmt --all

results: ## Run the benches on a quiet machine and keep their records (ONLY=stage15,… MINUTES=40 FORCE=1 ARGS=…)
	$(CARGO) build --release --locked -p loquent -p shape-model
	tools/with-cpu-env bench/results.py $(if $(ONLY),--only $(ONLY)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FORCE),--force) $(ARGS)

results-tables: ## Write RESULTS.md's tables, README's figures and the picture from the records
	@bench/results.py --render

models: ## Fetch two trained models (350 MB) for tests and measurements into the user's cache
	@tools/models

bench: ## List the benchmarks (bench/RESULTS.md has their figures)
	@ls bench/*.sh && echo "Run one on a quiet machine: bench/NAME.sh"

release: ## Do all of a release but publishing it: target/dist/vVERSION (VERSION=1.2.3, TAG=1, DRY_RUN=1, URL=…)
	@tools/setup dist
	@tools/release $(or $(VERSION),$(error make release VERSION=1.2.3)) $(if $(TAG),--tag) $(if $(DRY_RUN),--dry-run) \
		$(if $(URL),--url $(URL))

dist: ## Build the portable binary and package it: target/dist (TARGET=… for another processor, URL=…)
	@tools/setup dist
	tools/portable $(TARGET)
	tools/dist $(if $(TARGET),--target $(TARGET)) $(if $(URL),--url $(URL))

test-dist: ## Install the packages of `make dist` into a clean, older Debian, serve and ask (as root)
	tools/test-dist

setup: ## Install what building and testing need
	@tools/setup build test e2e

clean: ## Remove everything that was built
	cargo clean
	rm -rf .venv tests/e2e/node_modules tests/apps/react/node_modules web/client/node_modules web/client/dist web/app/node_modules tools/lint/node_modules
