"""The configurations that come with the package. In a checkout they are the files of its folder configs/.

In a wheel those files are in this file's place: setup.py says so to setuptools, as the line below says it to Python.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / 'configs')]
