# A short door to meson and the scripts. Every target first installs the Debian packages it
# needs (scripts/setup); FLUE_SETUP=skip turns that off. `make help` lists the targets.

# Where `make install` puts things; DESTDIR is honoured as well.
PREFIX ?= /usr/local

.DEFAULT_GOAL := build
.PHONY: build run test check test-long bench compare lab install uninstall deb coverage fuzz format
.PHONY: clean help

build: ## compile (gcc); the tool is then build/flue
	@scripts/setup build
	@scripts/build gcc

run: ## show what Flue does: Redis natively and under Flue, then RDMA; figures and pictures
	@scripts/setup build run
	@scripts/build gcc
	@scripts/run-demo

check: ## what a developer runs all day: quick tests, fast checks; under a minute
	@scripts/setup build test
	@scripts/test quick

test: ## everything a commit must pass; under 25 minutes on two cores
	@scripts/setup build test lab smoke
	@scripts/test full

test-long: ## long randomized, fuzz and torture runs; under 75 minutes
	@scripts/setup build test lab smoke programs deb
	@scripts/test long

lab: ## only the tests against Linux's own iWARP driver in a small guest
	@scripts/setup build test lab
	@scripts/test lab

bench: ## measure Flue and its rivals; results in build/bench
	@scripts/setup build test bench lab
	@scripts/build gcc release
	@bench/run

compare: ## measure the sockets door against another revision, by turns (REV=HEAD)
	@scripts/setup build bench
	@bench/compare $(or $(REV),HEAD)

coverage: ## line coverage of the tests, with limits
	@scripts/setup build test
	@scripts/coverage

fuzz: ## run every fuzzer for a minute (SECONDS_EACH=n for another time)
	@scripts/setup build test
	@scripts/fuzz --seconds $(or $(SECONDS_EACH),60)

format: ## rewrite sources in the house format
	@scripts/setup build test
	@scripts/check-format --fix

install: ## install below PREFIX (/usr/local)
	@scripts/setup build
	@PREFIX=$(PREFIX) scripts/build release
	@DESTDIR=$(DESTDIR) scripts/install

uninstall: ## remove what `make install` has put below PREFIX
	@PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) scripts/uninstall

deb: ## make Debian packages in build/deb
	@scripts/setup build deb
	@scripts/deb

clean: ## remove everything that was built
	@rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12
