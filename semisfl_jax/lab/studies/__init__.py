"""Tables and figures of a paper: the runs they need, how these are executed, and the report on them.

    python launch.py --config=configs/studies/table4.py:smoke

`spec` defines what a study is; the files in configs/studies are studies. `plan` turns its cells into runs, each in a
folder named after its configuration, so that studies under one root share the runs they have in common. `engine`
executes the missing runs, each as a separate command, also those of `sweeps`, which search hyper-parameters. `collect`
reads finished runs, `measures` says what is read off them, `statistics` compares them, `figures` draws them, and
`report` writes the results as a `document`. Report and figures depend only on the finished runs: their bytes are the
same regardless of interruptions, but for the hours that the runs took.
"""
