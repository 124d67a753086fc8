"""Keys of scores, and Delta_m."""

import pytest

from semisfl_jax.tasks import delta_m, task


def test_delta_m_is_that_of_the_paper():
    """Table 2 of M-Fed; a falling error is a gain."""
    local = {'semseg': 42.07, 'parts': 50.74, 'saliency': 58.50, 'edges': 62.60}
    federated = {'semseg': 53.14, 'parts': 55.76, 'saliency': 61.40, 'edges': 66.20}
    m_fed = {'semseg': 53.98, 'parts': 55.93, 'saliency': 61.56, 'edges': 66.20}
    higher = dict.fromkeys(local, True)
    assert delta_m(federated, local, higher) == pytest.approx(11.73, abs=0.005)
    assert delta_m(m_fed, local, higher) == pytest.approx(12.38, abs=0.005)
    assert delta_m({'depth': 0.3, 'ap': 0.6}, {'depth': 0.4, 'ap': 0.5}, {'depth': False, 'ap': True}) == pytest.approx(
        22.5
    )


def test_a_key_of_a_score_names_its_output_and_its_score():
    for output, score, text in (
        ('after_server', 'accuracy', 'after_server accuracy'),
        ('semseg', 'miou', 'semseg mIoU'),
        ('student', 'client_accuracy_worst', 'student accuracy, worst tenth of clients'),
    ):
        headline = task.split_key(task.score_key(output, score))
        assert (headline.output, headline.score.name, headline.text) == (output, score, text)
        assert headline.key == f'{output}_{score}'
    assert task.split_key('teacher_accuracy_per_class/3').score.name == 'accuracy_per_class'
    others = 'loss_accuracy', 'student_loss', 'accuracy', 'semseg_miou_best', 'lr'
    assert [task.split_key(key) for key in others] == [None] * 5
