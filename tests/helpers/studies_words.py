"""Studies as the command reads them, and how many cells each has."""

import functools
import re

from semisfl_jax.base.errors import UserError
from semisfl_jax.config import command_line, load
from semisfl_jax.lab.studies import plan
from tests.helpers import runs

# Rows times columns at scale full, counted by hand in the paper, and those of the rows that are ours.
CELLS = {
    'table2': (6 + 2) * 4,
    'table3': (5 + 3) * 3,
    'table4': (5 + 3) * 4,
    'table5': 3 * 4,
    'table6': 2 * 3 * 4 * 3,  # under the settings of paper and code
    'fig5_6_cost': 3 * 5 * 5,
    'fig9_labels': (6 + 2) * 5 + 2 * 5,
    'fig10_client_labels': 2 * 4,
    'fig11_frequency': 2 * 5,
    'fig12_ablation': 5 + 5,
    'fixed_k_s': 2 * 6 * 2,
    'parts': (10 + 3) * 2,
    'semifl_parts': 10 * 2,
    'fedmatch_parts': 9 * 2,
    'priors': (4 * 3 + 3) * 2 + 8 * 2,
    'anchors': 3 * 3 * 2,
    'start': 5 * 2 * 2,
}
# Of Fed-SHVR and FedDure, at every scale; FedDure's tables have one of three data sets, or of two, but at full
CELLS_OF_LABELED = {
    'shvr_table1': 11 * 4 + 4 * 8,
    'shvr_fig4': 3 * 2,
    'shvr_fig6': 2 * 4 * 5,
    'feddure_table1': 9 * 3 * 3,
    'feddure_table2': 4 * 4 + 4 * 4 * 5,
}
# At scale full and the others: methods, constant predictions, and in saliency all objects
CELLS_OF_MFED = {'mfed_table2': (4 * 5 + 1 + 6 * 10 + 2, 4 * 5 + 1 + 4 * 10 + 2), 'mfed_table3': (2 * 4 * 5, 4 * 5)}
FILES = [path for path in sorted((runs.ROOT / 'configs/studies').glob('*.py')) if 'def get_config' in path.read_text()]


def scales_of(path):
    """The scales of a study, which it lists where none is given: 'smoke (digits, ...), cpu (...)'."""
    try:
        load.load_file(path, '')
    except UserError as error:
        return re.findall(r'(\w+) \((?:[^()]|\([^()]*\))*\)', str(error))
    raise AssertionError(f'{path} needs no scale')


ALL = [(path.stem, scale) for path in FILES for scale in scales_of(path)]


def parse(name, scale, *words):
    """The parsed command line of a study."""
    file = f'--config={runs.ROOT}/configs/studies/{name}.py:{scale}'
    return command_line.parse(['launch.py', file, *words], studies=True)


def jobs(study):
    """Its jobs, without the checks of a plan."""
    return plan.with_needed(job for cell in study.cells() for job in plan.jobs_of(cell))


@functools.cache
def study(name, scale):
    """Its definition, made once for all tests: none changes it."""
    return parse(name, scale).config.study
