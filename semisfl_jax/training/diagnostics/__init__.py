"""Arrays about the pseudo-labels, queue and models of a run, written to the workdir in addition to the metrics.

Every `config.diagnostics_every` rounds, and after the last one, a file `diagnostics/round_000100.npz` is written. It is
computed separately from the round, from the state after it, and does not affect the numbers of the run. All entries
that are not names, except `distance` and `norm`, are counts, from which `tables` computes rates. Letters as in `types`;
row or column K of true classes is for images of unknown class. MODEL is each of `types.MODELS` that the method has.

    round            []              rounds completed
    unlabeled        [N, K+1]        unlabeled images of each client by class; all its images if it knows all labels
    MODEL_confident  [N, K+1, K]     of those, the confident pseudo-labels: client, true class, label. All images of all
                                     clients, in separately drawn weak views, labeled in evaluation mode, whatever
                                     `pseudo_labels` is
    MODEL_test       [K, K]          test images: true class, predicted class
    agreement        [K, K]          test images: class predicted by the teacher, by the student
    queue_levels     [V]             names: 'supervised' and 'unlabeled', or 'ring'
    queue            [V, 2, K+1, K]  slots before the queue was emptied at the end of the round: not confident or
                                     confident, true class, label
    queue_empty      [V]             slots never written in that round
    pieces           [3]             names: 'bottom', 'top', 'proj'
    distance         [3]             Euclidean distance of teacher and student parameters
    norm             [3]             Euclidean norm of the student's parameters
    eval_split       []              'validation' if the "test images" are validation images; otherwise absent

In SemiSFL the teacher after a round is the one that labeled during it; the labeling models and times of other methods
are given in their own documentation.

`agreement`, `pieces`, `distance` and `norm` are present for methods with a teacher, the queue entries for methods with
a queue. With `client_teacher_ema` the labels in the queue depend on how each client trained and cannot be recomputed
afterwards, so the queue is left out.
"""

from semisfl_jax.training.diagnostics.files import cut_back, load, rounds_written, save
from semisfl_jax.training.diagnostics.measure import build
from semisfl_jax.training.diagnostics.tables import Rates, class_rates, client_rates, count_labels, count_slots

__all__ = [
    'Rates',
    'build',
    'class_rates',
    'client_rates',
    'count_labels',
    'count_slots',
    'cut_back',
    'load',
    'rounds_written',
    'save',
]
