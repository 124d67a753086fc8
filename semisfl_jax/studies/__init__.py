"""Tables and figures of a paper: what runs they need, how these are made, and what is reported of them.

    python launch.py --config=configs/studies/table4.py:smoke

`spec` says what a study is; the files in configs/studies are studies. `plan` turns its cells into runs, each in a
folder named after its configuration, so that studies under one root share the runs they have in common. `engine` makes
what is missing, each run by a command of its own. `collect` reads finished runs, `statistics` compares them, `figures`
draws them, and `report` says it all in a `document`. Report and figures follow from finished runs alone: whatever
happened on the way, their bytes are the same.
"""
