"""What a run prints."""

from semisfl_jax import tasks
from semisfl_jax.training.events import Progress


def test_a_log_file_gets_a_line_per_evaluation_and_no_control_characters(capsys):
    progress = Progress(0, 4, tasks.Headline('teacher', tasks.ACCURACY))
    record = {'k_s': 20, 'loss_supervised': 1.25, 'loss_consistency': None, 'loss_clustering': None}
    progress.update({'round': 1, **record})
    assert capsys.readouterr() == ('', '')
    progress.update({'round': 2, 'teacher_accuracy': 0.5, **record})
    progress.bar.close()
    printed = capsys.readouterr()
    assert printed.out.startswith('round 2/4')
    assert 'teacher accuracy 50.00%' in printed.out
    assert '\r' not in printed.out
    assert not printed.err
