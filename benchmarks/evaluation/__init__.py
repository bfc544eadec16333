"""What the benchmarks compare maps by: runs in memory, metrics, reference levels. It reads exact data."""
