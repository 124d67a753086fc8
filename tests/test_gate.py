"""Hashes, folders, runs, reports and public names are those of tests/gate.json (`python -m tests.gate write`)."""

import pytest

import semisfl_jax as sfl
from tests import gate


def test_every_configuration_has_the_hash_and_the_folder_that_it_had():
    assert {name: gate.configuration(name) for name in gate.CONFIGURATIONS} == gate.expected()['configurations']


@pytest.mark.parametrize('name', gate.SWEEPS)
def test_first_runs_of_sweeps_have_the_names_and_commands_that_they_had(name):
    """Those of studies: tests/configs/test_studies.py."""
    assert gate.digest(gate.jobs(name)) == gate.expected()['runs'][name]


def test_the_studies_and_sweeps_are_those_of_the_gate():
    assert list(gate.expected()['runs']) == [*gate.STUDIES, *gate.SWEEPS]


@pytest.mark.parametrize('kind', ['study', pytest.param('sweep', marks=pytest.mark.slow)])
def test_reports_of_made_up_runs_have_the_text_that_they_had(kind):
    if kind == 'sweep':
        pytest.importorskip('optuna')
    texts = gate.report(kind)
    assert {name: gate.digest([text]) for name, text in texts.items()} == gate.expected()['reports'][kind]


def test_public_names_are_those_that_they_were():
    assert sorted(sfl.__all__) == gate.expected()['names']
