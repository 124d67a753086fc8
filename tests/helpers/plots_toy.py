"""A run to be drawn, its numbers made up."""

from semisfl_jax import runs

GIB = 1024**3  # bytes


def made_up(seed, accuracy, headline='teacher', up=(GIB, 2 * GIB, 3 * GIB)):
    """A run of three rounds, evaluated after the second and the third."""
    records = [{'round': 1, 'k_s': 8, 'bytes_up': up[0], 'bytes_down': GIB, 'simulated_seconds': 30.0}]
    for number, value in enumerate(accuracy, start=2):
        values = {f'{headline}_accuracy': value, 'mask_rate': None, 'loss_consistency': value / 2}
        values |= {f'{headline}_accuracy_per_class': [value, None], 'student_macro_f1': value / 4}
        times = {'bytes_up': up[number - 1], 'bytes_down': number * GIB, 'simulated_seconds': number * 30.0}
        records.append({'round': number, 'k_s': 8, **values, **times})
    return runs.Run(f'run{seed}', {'algorithm': 'semisfl'}, seed, headline, runs.rows(records))
