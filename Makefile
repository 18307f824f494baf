# Milepost: one set of targets for a laptop and for CI.
#   make quickstart   everything from nothing to a better policy (installs what is missing)
#   make test         make check, then every test; the last line is "N passed, N failed, N skipped"
SHELL := /bin/bash
.DEFAULT_GOAL := build
.PHONY: build deps quickstart test check bench chaos study e2e-real eval-scale images generate fmt

ENVS := trainer_bridge/python/envs/install
QUICKSTART_DIR ?= runs/quickstart

build: ## the milepost binary
	CGO_ENABLED=0 go build -o bin/milepost ./cmd/milepost # static: it is the agent in containers, too

deps: ## system packages and the pinned Python environments
	@build/deps

quickstart: deps build
	bin/milepost quickstart --set run.dir=$(QUICKSTART_DIR) $(ARGS)

check: deps
	@build/check

test: deps
	@build/test

chaos: deps ## what breaks and must come out the same: shadow probing, and thirty whole runs; PART=probes or runs for one
	@PART="$(PART)" build/chaos $(ARGS)

bench: deps build
	@build/bench $(ARGS)

study: deps build ## ablations; SIZE=smoke, default, larger or async
	@build/study

e2e-real: deps build ## real models and packages; PART="images", "train" or "generate" alone
	@build/e2e-real $(PART)

images: build ## container images of orchestrator, trainer and server; TARGETS="orchestrator trainer"; TARGETS=check tries them
	@build/images $(TARGETS)

eval-scale: deps build ## 500 tasks by 4 attempts, killed and resumed; memory over time
	@build/eval-scale

generate:
	trainer_bridge/generate.sh
	go run ./configs/gen

fmt:
	gofmt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')
