"""M-Fed, Table 3, in part: stuff segmentation of COCO with two sizes of encoder, beside semantic segmentation.

    python launch.py --config=configs/studies/mfed_table3.py:smoke

The models of the paper's other columns are not in this package: Mask R-CNN for instances, Panoptic FPN, and associative
embedding for keypoints. In place of them, semantic segmentation is the task that stuff shares its encoder with.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import mfed

from semisfl_jax.lab.studies.spec import Table

TASKS = ('stuff', 'semseg')
FIGURES = ('values', 'score_rounds')
CAPTION = 'Delta_m is the gain over Local in both tasks.'


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    mfed.check(scale)
    tables = []
    for layers, numbers in mfed.TABLE_3.items():
        if scale in mfed.SCENES and tables:  # one small network is enough
            break
        model = {} if scale in mfed.SCENES else {'model.name': f'deeplabv3_resnet{layers}'}
        made = []
        for row, changes in mfed.METHODS.items():
            made += mfed.cells(scale, 'coco_panoptic', row, changes | model, TASKS, mfed.LOCAL, numbers[row])
        made += mfed.trivial([cell for cell in made if cell.row == mfed.LOCAL])
        title = 'Table 3: stuff' + (f', ResNet-{layers}' if model else '')
        tables.append(Table(title, tuple(made), 'Method', mfed.M_FED, FIGURES, CAPTION))
    notes = [
        "Of the paper's four tasks, instance and panoptic segmentation and keypoints are left out, and so are their "
        'numbers and its Delta_m: their models are not in this package.',
        "The paper's stuff shares an encoder with those three tasks; here it shares one with semantic segmentation.",
    ]
    if scale == 'full':
        notes.append('The paper has the classes of COCO-Stuff; here stuff has the 53 of the panoptic annotations.')
    return mfed.study('mfed_table3', scale, 'M-Fed, Table 3, in part', tables, notes)
