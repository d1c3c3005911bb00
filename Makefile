# `make test` is all that a fresh machine needs; the rest are shorthands.
.PHONY: test demo bench fmt lint services-up services-down clean

test:
	@scripts/test

demo:
	cargo run --release --locked -- demo

bench:
	cargo run --release --locked --package answerback-bench

fmt:
	cargo fmt --all

lint:
	scripts/lint-cargo test --release --locked --workspace --no-run

services-up:
	scripts/services up
	@scripts/services env

services-down:
	scripts/services down

clean: services-down
	cargo clean
