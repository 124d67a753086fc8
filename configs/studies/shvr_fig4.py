"""Fed-SHVR, Fig. 4: training loss, and spread of the accuracy over seeds, of Fed-SHVR and its ablations, Non-IID.

    python launch.py --config=configs/studies/shvr_fig4.py:smoke

The loss is the clients' objective, a mean over the iterations of a round. The spread is the standard deviation over
seeds, divided by their number as in the paper.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import shvr

from semisfl_jax.studies.spec import Measure, Table

ROWS = ('Fed-SHVR', 'Fed-SH', 'Fed-SVR')


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    shvr.check(scale)
    rows = {row: {**shvr.methods(scale)[row], **shvr.NON_IID} for row in ROWS}
    parts = {
        'Fig. 4(a): training loss': (Measure('loss'), ('values', 'loss_rounds')),
        'Fig. 4(b): test accuracy and its spread': (
            Measure('accuracy'),
            ('values', 'spread_rounds', 'accuracy_rounds'),
        ),
    }
    tables = []
    for title, (measure, figures) in parts.items():
        cells = [shvr.cell(scale, row, 'Non-IID', changes, None, measure) for row, changes in rows.items()]
        tables.append(Table(title, tuple(cells), 'Method', 'Fed-SHVR', figures))
    return shvr.study('shvr_fig4', scale, 'Fed-SHVR, Fig. 4', tables)
