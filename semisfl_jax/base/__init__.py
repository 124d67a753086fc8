"""What all rings stand on, and what imports nothing of the package: errors, files, processes, the machine, keys."""
