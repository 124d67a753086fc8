"""What a change of the house's structure must not change; to be compared before and after, on one machine.

    python -m tests.gate > before.txt

One line for each configuration and each cell of a study or a sweep (the hash that identifies its run, and where its
runs are kept), for each public name, and for each fault that the tests notice (tests/mutants.py). The numbers of
training are those of `python -m tests.golden bytes`.
"""

import importlib
import pkgutil

import configs.studies
import configs.sweeps
import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import plan, spec
from tests import mutants


def configurations():
    for name in sorted(module.name for module in pkgutil.iter_modules(configs.__path__) if not module.ispkg):
        for settings in ('paper', 'code'):
            config = importlib.import_module(f'configs.{name}').get_config(settings)
            resolved = config_lib.resolve(config)
            yield f'{name}:{settings} {config_lib.identity_hash(resolved)} {config_lib.default_workdir(resolved, name)}'


def cells():
    for name in sorted(module.name for module in pkgutil.iter_modules(configs.studies.__path__)):
        get_config = getattr(importlib.import_module(f'configs.studies.{name}'), 'get_config', None)
        for scale in spec.SCALES if get_config else ():
            try:
                study = get_config(scale).study
            except UserError:  # it has no such scale
                continue
            for table in study.tables:
                for cell in table.cells:
                    jobs = ' '.join(job.name for job in plan.jobs_of(cell))
                    yield f'{name}:{scale} | {table.title} | {cell.row} | {cell.column} | {jobs}'


def main():
    for line in configurations():
        print('configuration', line)
    for line in cells():
        print('cell', line)
    for name in sorted(sfl.__all__):
        print('name', name)
    for mutant in mutants.MUTANTS:
        print(f'fault {mutant.file}: {mutant.name}')


if __name__ == '__main__':
    main()
