"""Trains one experiment: python launch.py --config=configs/digits.py (python launch.py --help tells the rest)."""

import sys

from semisfl_jax.__main__ import main

if __name__ == '__main__':
    sys.exit(main())
