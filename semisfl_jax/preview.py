"""The command `python -m semisfl_jax.preview`."""

import sys

from semisfl_jax.__main__ import main

if __name__ == '__main__':
    sys.exit(main([sys.argv[0], 'preview', *sys.argv[1:]]))
