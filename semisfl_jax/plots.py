"""The command `python -m semisfl_jax.plots`."""

import sys

from semisfl_jax.__main__ import main

if __name__ == '__main__':
    sys.exit(main([sys.argv[0], 'plots', *sys.argv[1:]]))
