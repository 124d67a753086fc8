"""Fig. 5 and 6: simulated minutes and gigabytes until a target accuracy is reached, and the rounds.

    python launch.py --config=configs/studies/fig5_6_cost.py:smoke

Rounds are not in the paper. With them one can tell what a method does from what its network costs: minutes and
gigabytes of a round depend on the sizes of model and features, which at the small scales are far from the paper's.

At scale `full` the runs are those of Table II; after a study of that table in the same --workdir, none remain to
be done. The paper's text gives only a few of the values of these figures.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.lab.studies.spec import Measure, Table

KINDS = {  # title -> kind of measure, the paper's numbers
    'Fig. 5: time': ('minutes', paper.MINUTES),
    'Fig. 6: traffic': ('gigabytes', paper.GIGABYTES),
    'Rounds': ('rounds', {}),
}
# The two of CIFAR-10 lie at 36 and 73 % of the way from the labels alone to SemiSFL (Table II), as do the last two of
# `digits` and `mnist` (results/table2-digits, results/table2-mnist). Those before need no unlabeled images.
SMALL_TARGETS = {
    'smoke': (0.4, 0.6),
    'cpu': (0.6, 0.7),
    'digits': (0.8, 0.88, 0.9, 0.93),
    'mnist': (0.85, 0.9, 0.94, 0.96),
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale, {name: cost for name, cost in scales.COSTS.items() if name in SMALL_TARGETS or name == 'full'})
    goals = [(scales.STAND_IN_NAME[scale], '', target) for target in SMALL_TARGETS.get(scale, ())]
    if scale == 'full':
        goals = [(data, base, target) for data, base in paper.DATA.items() for target in paper.TARGETS[data]]
    methods = {row: name for row, name in paper.METHODS.items() if name != 'supervised_only'}  # which has no clients
    tables = []
    for title, (kind, numbers) in KINDS.items():
        cells = []
        for row, algorithm in methods.items():
            for data, base, target in goals:
                number = paper.number(data, numbers.get((row, data, target)))
                changes, measure = {'algorithm': algorithm}, Measure(kind, target)
                cells.append(scales.cell(scale, row, f'{data} to {target:.0%}', base, changes, number, measure))
        figures = ('values', f'accuracy_{kind}')
        tables.append(Table(title, tuple(cells), 'Method', 'SemiSFL', figures))
    notes = [
        'Means are over the seeds that reach the target; if some do not, the means favor the luckier ones.',
        'A target counts as reached at the first evaluation with a test accuracy that is at least as high.',
    ]
    of_paper = [
        "The paper's text, of all other federated methods together: CIFAR-10 to 80 %: 279.9 to 702.4 min and 441.9 to "
        '560.5 GB; to 85 %: 591.9 to 1211.9 min.',
        "The paper's GB are taken to be GiB: 106 rounds of CIFAR-10, from the actual shapes, give its 181.95 in GiB.",
    ]
    return scales.study('fig5_6_cost', scale, 'SemiSFL, Fig. 5 and 6', tables, notes, of_paper)
