"""Sweeps: searches of hyper-parameters, see docs/sweeps.md."""
