"""Runs: an experiment, the inputs of its rounds, the loop over rounds, its outputs, and what is read from them."""
