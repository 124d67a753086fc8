"""FedDure, Table 1: nine methods on three data sets, with labeled and unlabeled images split alike and separately.

    python launch.py --config=configs/studies/feddure_table1.py:smoke

(IID, DIR): labeled images are equal at all clients, unlabeled ones follow Dir(0.5).
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import feddure

from semisfl_jax.lab.studies.spec import Table


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `feddure.COSTS`."""
    feddure.check(scale)
    numbers = feddure.TABLE_1
    cells = feddure.cells(scale, tuple(numbers), tuple(feddure.SETTINGS), numbers)
    table = Table('Table 1: test accuracy', tuple(cells), 'Method', 'FedDure', ('values', 'accuracy_rounds'))
    return feddure.study('feddure_table1', scale, 'FedDure, Table 1', [table])
