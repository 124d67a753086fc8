"""The command `python -m semisfl_jax.compare`."""

import sys

from semisfl_jax.__main__ import main

if __name__ == '__main__':
    sys.exit(main([sys.argv[0], 'compare', *sys.argv[1:]]))
