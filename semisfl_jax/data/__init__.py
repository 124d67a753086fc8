# ruff: noqa: F401
"""Data sets, their split between server and clients, and the clients of a round.

`load` finds and decodes a data set, `make_partition` splits it, `build_federations` arranges it for the jitted rounds,
`draw_cohort` picks the clients of each round.
"""

from semisfl_jax.data.arrays import from_arrays, from_hugging_face
from semisfl_jax.data.cache import default_dir as default_cache_dir
from semisfl_jax.data.dataset import Dataset, Outline
from semisfl_jax.data.federation import (
    HostFederation,
    build_federations,
    count_unknown,
    draw_cohort,
    make_cohort,
    tables,
)
from semisfl_jax.data.partition import Partition, check_tasks, describe, evaluated, make_partition
from semisfl_jax.data.partition_file import load as load_partition
from semisfl_jax.data.partition_file import load_for, save
from semisfl_jax.data.partitioners import NATURAL, PARTITIONS, RuleSettings
from semisfl_jax.data.sources import READERS, blank, checksum_of, load, outline, shape_only_dataset
