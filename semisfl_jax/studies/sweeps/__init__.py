"""Searches for the hyper-parameters of several methods, each with the same number of trials (docs/sweeps.md).

    python launch.py --config=configs/sweeps/digits.py:smoke

`spec` defines what a sweep is; the files in configs/sweeps are sweeps. `plan` turns a trial into a run, in a folder
named after its configuration. `search` proposes settings and decides which trials stop early, with Optuna. `measure`
reads validation accuracies. `engine` executes the trials, `results` says what was found, `figures` draws it, and
`report` writes it down, with tuned.json for studies.
"""
