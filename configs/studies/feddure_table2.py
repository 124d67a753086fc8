"""FedDure, Table 2: what each of its two regulators contributes.

python launch.py --config=configs/studies/feddure_table2.py:smoke
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import feddure

from semisfl_jax.studies.spec import Table


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `feddure.COSTS`."""
    feddure.check(scale)
    numbers = feddure.TABLE_2
    cells = feddure.cells(scale, tuple(numbers), ('(IID, DIR)', '(DIR, DIR)'), numbers)
    figures = ('values', 'accuracy_rounds')
    table = Table('Table 2: test accuracy', tuple(cells), 'Method', 'FedAvg + FixMatch', figures)
    return feddure.study('feddure_table2', scale, 'FedDure, Table 2', [table])
