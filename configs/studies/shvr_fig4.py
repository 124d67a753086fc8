"""Fed-SHVR, Fig. 4: objective, and spread of the accuracy over seeds, of Fed-SHVR and its ablations, Non-IID.

    python launch.py --config=configs/studies/shvr_fig4.py:smoke

F is the objective of all clients, at the server's model after a round. The spread is the standard deviation over seeds,
divided by their number as in the paper; the table has the deviation of each seed from the mean over seeds, a root mean
square over rounds. The runs are those of shvr_table1.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import shvr

from semisfl_jax.lab.studies.spec import Measure, Table

ROWS = ('Fed-SHVR', 'Fed-SH', 'Fed-SVR')


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    shvr.check(scale)
    rows = {row: {**shvr.methods(scale)[row], **shvr.NON_IID} for row in ROWS}
    parts = {
        'Fig. 4(a): training loss F': (Measure('loss'), ('values', 'loss_rounds')),
        'Fig. 4(b): spread of the test accuracy': (Measure('spread'), ('values', 'spread_rounds', 'accuracy_rounds')),
    }
    tables = []
    for title, (measure, figures) in parts.items():
        cells = [shvr.cell(scale, row, 'Non-IID', changes, None, measure) for row, changes in rows.items()]
        tables.append(Table(title, tuple(cells), 'Method', 'Fed-SHVR', figures))
    return shvr.study('shvr_fig4', scale, 'Fed-SHVR, Fig. 4', tables)
