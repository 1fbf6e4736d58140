# The two commands that the README promises are `make demo` and `make test`.

CARGO ?= cargo

built = $(or $(CARGO_TARGET_DIR),target)
# What tests boot: the dev build, which is there once the tests are built.
programs = $(built)/debug

.PHONY: build demo check doc tools packager release test test-all guest-test browser-test bench fuzz clean

build:
	$(CARGO) build --release --package evenkeel --package evenkeeld --package keeper

# The programs without optimisation across crates: minutes less to build, nearly as fast.
demo:
	$(CARGO) build --profile demo --package evenkeel --package evenkeeld --package keeper
	$(built)/demo/evenkeel demo

# What a person runs before each commit; part of `make test`.
check:
	$(CARGO) fmt --all --check
	$(CARGO) xtask check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# The test runner, where it is missing: a process per test, suites side by side, a time for each test.
tools:
	@$(CARGO) nextest --version >/dev/null 2>&1 || CARGO_PROFILE_DEV_DEBUG=false $(CARGO) install \
		--locked --debug --no-default-features cargo-nextest

# What makes the Debian package, where it is missing.
packager:
	@command -v cargo-deb >/dev/null || $(CARGO) install --locked --debug cargo-deb

# What is published, in target/release-files: packages for Debian 12 and 13, programs, debug files, SPDX, checksums.
release: packager
	$(CARGO) xtask release

# The daily tier: before each push, and what a newcomer runs. At most 15 minutes on two idle cores, 25 from nothing.
test: check tools
	$(CARGO) nextest run --workspace
	$(CARGO) build --workspace --bins --tests --quiet
	EVENKEEL_BIN=$(programs)/evenkeel $(programs)/trials guest-test

# Everything: at the end of a capability, and before a release. At most 75 minutes.
test-all: check tools packager doc build
	$(CARGO) clippy --package evenkeel-fuzz --features fuzzing --quiet -- -D warnings
	$(CARGO) nextest run --workspace --profile all
	$(CARGO) build --workspace --bins --tests --quiet
	EVENKEEL_BIN=$(built)/release/evenkeel $(programs)/trials guest-test --all
	EVENKEEL_BIN=$(built)/release/evenkeel $(programs)/trials browser-test

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# The daily guests, and those that the changed paths call for.
guest-test:
	$(CARGO) xtask guest-test

# The page in a headless Chromium; skipped, in words, where there is none.
browser-test:
	$(CARGO) xtask browser-test

# Both sides of each comparison in one run; writes a table and JSON. SPDK_DIR=… adds SPDK as a peer.
bench: build
	$(CARGO) xtask bench

# Five minutes of each fuzz target; needs a nightly toolchain and cargo-fuzz.
fuzz:
	$(CARGO) xtask fuzz --seconds 300

clean:
	$(CARGO) clean
