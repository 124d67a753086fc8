"""Measurements against PyTorch: python -m benchmarks.run --help."""
