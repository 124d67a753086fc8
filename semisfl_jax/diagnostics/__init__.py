"""What a run can tell of its pseudo-labels, its queue and its models beside the metrics: arrays in the workdir.

Every `config.diagnostics_every` rounds, and after the last one, a file `diagnostics/round_000100.npz` is written. It is
computed apart from the round, from the state after it, and changes no number of the run. All entries are counts, from
which rates follow (`tables`), but for the last two. Letters as in `types`; a row or column K of truths is for images
whose class nobody knows. MODEL is each of `types.MODELS` that the method has.

    round            []              rounds completed
    unlabeled        [N, K+1]        unlabeled images of each client by class; all its images if it knows all labels
    MODEL_confident  [N, K+1, K]     of those, the confident pseudo-labels: client, true class, label. All images of all
                                     clients, in weak views of their own draw, labeled in evaluation mode
    MODEL_test       [K, K]          test images: true class, predicted class
    agreement        [K, K]          test images: class predicted by the teacher, by the student
    queue_levels     [V]             names: 'supervised' and 'unlabeled', or 'ring'
    queue            [V, 2, K+1, K]  slots as they were before the queue was emptied at the end of the round: not
                                     confident or confident, true class, label
    queue_empty      [V]             slots never written in that round
    pieces           [3]             names: 'bottom', 'top', 'proj'
    distance         [3]             Euclidean distance of teacher and student parameters
    norm             [3]             Euclidean norm of the student's parameters

In SemiSFL the teacher after a round is the one that labeled in it; other methods label with the models that their own
descriptions name, at their own times.

`agreement`, `pieces`, `distance` and `norm` are there for methods with a teacher, the queue for those with one. With
`client_teacher_ema` the labels of the queue depend on how each client trained, and cannot be told afterwards: it is
left out.
"""

from semisfl_jax.diagnostics.files import cut_back, load, rounds_written, save
from semisfl_jax.diagnostics.measure import build
from semisfl_jax.diagnostics.tables import (
    Rates,
    class_rates,
    client_rates,
    count_labels,
    count_slots,
    overall_rates,
)

__all__ = [
    'Rates',
    'build',
    'class_rates',
    'client_rates',
    'count_labels',
    'count_slots',
    'cut_back',
    'load',
    'overall_rates',
    'rounds_written',
    'save',
]
