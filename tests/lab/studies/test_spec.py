"""Cells of a study, and what a command line changes in them."""

from semisfl_jax.lab.studies import spec
from tests.helpers import studies_toy


def test_the_options_of_a_cell_are_what_differs_from_its_file():
    cell = studies_toy.cell('fedswitch', 0.5)
    assert cell.changes == {'algorithm': 'fedswitch', 'federation.alpha': 0.5, 'rounds': 4, 'seeds': (0, 1, 2)}
    faster = spec.changed(cell, {'lr': 0.5})
    assert (faster.config.lr, faster.changes) == (0.5, {**cell.changes, 'lr': 0.5})
    assert spec.changed(cell, {'lr': cell.config.lr}).changes == cell.changes
    assert spec.changed(cell, {'lr': cell.config.lr}, kept=['lr']).changes == {**cell.changes, 'lr': cell.config.lr}


def test_a_part_has_a_name_of_its_own_unless_nothing_is_left_out():
    study = studies_toy.study()
    assert study.part([], []) == study
    part = study.part(['FedSwitch'], [])
    assert [(cell.row, cell.column) for cell in part.cells()] == [('FedSwitch', 'Dir(1)'), ('FedSwitch', 'Dir(0.5)')]
    assert part.name.startswith('toy-part-')
    assert part.tables[0].reference == ''  # SemiSFL is left out
