"""Benchmarks: ``python -m benchmarks NAME`` prints one Markdown table."""
