"""Configurations by name: `default` has every key, and each other file changes what it needs."""
