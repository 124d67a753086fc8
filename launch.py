"""Trains one experiment: python launch.py --config=configs/digits.py (python launch.py --help tells the rest)."""

import sys

try:
    from semisfl_jax.__main__ import main
except ModuleNotFoundError as error:
    sys.exit(f'error: {error.name} is not installed; run: pip install -e .')

if __name__ == '__main__':
    sys.exit(main())
