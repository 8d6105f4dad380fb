"""Speed and memory as ratios, both sides in one run: `make bench`, or `python -m benchmarks --help`."""
