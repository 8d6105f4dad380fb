"""Leak trace against the plain forward pass and against output_attentions, on the packaged SmolLM2-135M.

One thread, batch 1, float32. Each side runs in its own process, the sides in turn (A B C A B C ...), so that a drifting
machine hits all alike; times are the best pass of a process, ratios the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys


def measure(side: str, length: int, passes: int) -> dict[str, float]:
    """Run one worker."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.worker", side, str(length), str(passes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"benchmarks: {side} at {length} tokens failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a table of times, peaks and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--sides", nargs="+", default=["plain", "trace", "attentions"])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    measure("plain", 64, 1)  # converts the GGUF file once, outside the timings
    results = []
    if not options.json:
        print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, one thread, float32")
        print(f"{'tokens':>7} {'side':<11} {'seconds':>8} {'peak MB':>8} {'time ratio':>11} {'memory ratio':>13}")
    for length in options.lengths:
        rounds = [{s: measure(s, length, options.passes) for s in options.sides} for _ in range(options.rounds)]
        for side in options.sides:
            row = {
                "tokens": length,
                "side": side,
                "seconds": statistics.median(r[side]["seconds"] for r in rounds),
                "peak_mb": statistics.median(r[side]["peak_bytes"] for r in rounds) / 1e6,
                "time_ratio": statistics.median(r[side]["seconds"] / r["plain"]["seconds"] for r in rounds),
                "memory_ratio": statistics.median(r[side]["peak_bytes"] / r["plain"]["peak_bytes"] for r in rounds),
            }
            results.append(row)
            if not options.json:
                print(
                    f"{length:>7} {side:<11} {row['seconds']:>8.2f} {row['peak_mb']:>8.0f} "
                    f"{row['time_ratio']:>10.2f}x {row['memory_ratio']:>12.2f}x",
                    flush=True,
                )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
