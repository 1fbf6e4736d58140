# The two commands that the README promises are `make demo` and `make test`.

CARGO ?= cargo

# The fuzz targets link libFuzzer, which needs a C++ compiler.
workspace = --workspace $(if $(CI)$(shell command -v c++),,--exclude evenkeel-fuzz)

.PHONY: build demo check test guest-test browser-test bench fuzz clean

build:
	$(CARGO) build --release --package evenkeel --package evenkeeld --package keeper

demo: build
	target/release/evenkeel demo

# What a person runs before pushing; part of `make test`.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(workspace) --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(workspace) --no-deps --quiet
	$(CARGO) xtask check

# What the fuzz targets run is played here over fixed seeds and over their corpora.
test: check
	@command -v c++ >/dev/null || echo "the fuzz targets: skipped, there is no C++ compiler (c++)"
	$(CARGO) test $(workspace) --quiet
	$(MAKE) guest-test
	$(MAKE) browser-test

guest-test: build
	$(CARGO) xtask guest-test

# The page in a headless Chromium; skipped, in words, where there is none.
browser-test: build
	$(CARGO) xtask browser-test

# Both sides of each comparison in one run; writes a table and JSON. SPDK_DIR=… adds SPDK as a peer.
bench: build
	$(CARGO) xtask bench

# Five minutes of each fuzz target; needs a nightly toolchain and cargo-fuzz.
fuzz:
	$(CARGO) xtask fuzz --seconds 300

clean:
	$(CARGO) clean
