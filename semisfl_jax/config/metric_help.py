"""The metrics of a run, the keys of a line of metrics.jsonl: for `--help METRIC` and docs/metrics.md."""

from collections.abc import Iterator
from typing import NamedTuple

from semisfl_jax import algorithms
from semisfl_jax.core.types import MODELS
from semisfl_jax.tasks import DENSE, score_key, smallest


class Metric(NamedTuple):
    """Metrics with one description."""

    keys: tuple[str, ...]
    where: str  # which methods write them, or when
    meaning: str


_HAS_SERVER, _DENSE = 'methods with a server phase', 'methods for dense tasks'
_CLASSES = 'classification, beside each accuracy'


def _of_models(score: str, meaning: str) -> Metric:
    return Metric(tuple(score_key(model, score) for model in MODELS), _CLASSES, meaning)


COMMON = (
    Metric(('round',), 'all methods', 'rounds completed, from 1'),
    Metric(('k_s',), 'all methods', 'supervised iterations of the server in this round'),
    Metric(('lr',), 'all methods', 'learning rate of the round'),
    Metric(('loss_supervised',), _HAS_SERVER, 'what the server minimizes: the weighted sum of its parts'),
    Metric(
        ('loss_supervised_ce', 'loss_supervised_contrastive'),
        _HAS_SERVER,
        'cross-entropy; contrastive loss (0 where there is none)',
    ),
    Metric(
        ('supervised_accuracy',),
        _HAS_SERVER,
        "share of the server's training images classified correctly, in training mode",
    ),
    Metric(
        ('loss_unlabeled',),
        'methods that learn from unlabeled images',
        'what unlabeled images contribute to the loss: in SemiSFL, H + C with their weights, also over the '
        "clients' labeled images",
    ),
    Metric(
        ('loss_consistency',),
        '`semisfl`, `semisfl_prior`, `fedswitch`, `fedswitch_sl`, `fedavg`, `fedprox`, `feddure`, `fed_shvr`, '
        '`fed_sh`, `fed_svr`',
        'H: cross-entropy (UDA: divergence; `mean_teacher`: squared difference) against pseudo-labels; rows below '
        "the threshold count as 0. In `feddure` with weights m + d, so it can be negative; in Fed-SHVR's family with "
        'its three terms (Eq. 5a, 6 and 9)',
    ),
    Metric(
        ('loss_local',),
        'full-model methods, `splitfed`',
        'everything a client minimizes, except for what draws it to another model in FedProx and M-Fed',
    ),
    Metric(
        ('loss_global',),
        '`fed_shvr`, `fed_sh`, `fed_svr`',
        "F of the server's model over all images of the clients without augmentation, in rounds with an evaluation; "
        '`alpha0` is that after the ramp',
    ),
    Metric(
        ('loss_client_labels',),
        'full-model methods whose clients have both labels and unlabeled images',
        'cross-entropy of the labeled images',
    ),
    Metric(
        ('mask_rate',),
        'methods with pseudo-labels',
        'share of unlabeled images whose pseudo-label reaches the threshold',
    ),
    Metric(
        ('pseudo_label_accuracy',),
        'methods with pseudo-labels',
        'of the pseudo-labels that reach the threshold, the share that is correct (1 with `pseudo_labels=true`)',
    ),
    Metric(
        ('teacher_accuracy', 'student_accuracy'),
        'methods with such a model',
        'test accuracy of the models at the end of the round, in rounds with an evaluation; validation accuracy with '
        '`data.eval_split=validation`, as all scores',
    ),
    Metric(('fake',), 'runs with `data.fake=True`', '`true`: the images are synthetic, and scores mean nothing'),
    Metric(('validation',), 'runs with `data.eval_split=validation`', '`true`: scores are of validation images'),
    Metric(
        ('after_server_accuracy',),
        "`semifl` under `semifl.order='server_first'`",
        "test accuracy of the model after the server's steps of that round; the headline metric, `student_accuracy`, "
        'is then of the average over clients',
    ),
    _of_models(
        'macro_f1',
        'mean over classes of F1 = 2 TP / (2 TP + FP + FN), as by scikit-learn; without classes that are neither the '
        'truth nor the prediction of any test image',
    ),
    _of_models('eval_loss', 'test loss: mean cross-entropy of the model, in nats, whatever the method minimizes'),
    _of_models(
        'accuracy_per_class',
        'a list: the accuracy on the test images of each class, by class number; `null` without such images. Trackers '
        'and tables call that of class 3 `teacher_accuracy_per_class/3`',
    ),
    _of_models(
        'client_accuracy',
        'mean over all clients of the accuracy on the test set with the class shares of the client: the mean of '
        '`accuracy_per_class`, weighted by the images of each class that the client holds, labeled or not. Classes '
        'without test images do not count, nor do clients that hold images of no other known class',
    ),
    _of_models('client_accuracy_std', 'standard deviation over clients; see `client_accuracy`'),
    _of_models('client_accuracy_worst', 'mean of the worst tenth of clients, rounded up; see `client_accuracy`'),
    Metric(
        tuple(f'{task}_loss' for task in DENSE),
        _DENSE,
        "loss of a task, without M-Fed's penalty; `loss_local` is the mean over tasks. `null` in a round in which all "
        'clients of the task failed',
    ),
    Metric(
        ('semseg_miou', 'parts_miou', 'stuff_miou'),
        _DENSE,
        "mean IoU over classes, on the whole test set. In `mfed_local`, scores are means over the clients' models",
    ),
    Metric(
        ('semseg_pixelaccuracy', 'parts_pixelaccuracy', 'stuff_pixelaccuracy'),
        _DENSE,
        'share of test pixels classified correctly',
    ),
    Metric(
        ('saliency_iou', 'edges_odsf', 'depth_rmse', 'keypoints_ap'),
        _DENSE,
        'IoU of the foreground at the best threshold; F of thinned edges, matched one to one, at the best threshold of '
        'the set; root mean squared error; average precision (docs/ledger.md)',
    ),
    Metric(
        ('instances_mask_ap', 'persons_oks_ap'),
        _DENSE,
        'AP of COCO at the size of the pictures, by pycocotools: the mean over ten overlaps from 0.5 to 0.95, of '
        'masks, and of joints by object keypoint similarity',
    ),
    Metric(
        ('instances_mask_ap50', 'instances_mask_ap75', 'instances_box_ap', 'persons_oks_ap50', 'persons_oks_ap75'),
        _DENSE,
        'the same at an overlap of 0.5 and 0.75, and of boxes',
    ),
    Metric(
        ('panoptic_pq', 'panoptic_sq', 'panoptic_rq'),
        _DENSE,
        'panoptic quality, the mean over classes, and of its factors: how well segments fit, and how many are found',
    ),
    Metric(
        tuple(f'{score_key(task, smallest(task).score.name)}_best' for task in DENSE),
        '`mfed_local`',
        'score of the best client',
    ),
    Metric(
        ('bytes_up', 'bytes_down'),
        'all methods',
        'what clients sent to the server, and the server to clients, in all rounds so far (docs/costs.md)',
    ),
    Metric(
        ('simulated_seconds',),
        'all methods',
        'what all rounds so far would have taken on the network and devices of `cost` (docs/costs.md)',
    ),
    Metric(
        ('clients', 'clients_failed'),
        'runs with `failures`',
        'active clients whose work counted, and those that failed',
    ),
    Metric(
        ('wall_seconds',),
        'all methods',
        'time of the round, without compilation, evaluation and saving; with `seeds`, of all trials together',
    ),
    Metric(('images_per_second',), 'all methods', 'images that students trained on, divided by `wall_seconds`'),
)


def of_methods() -> Iterator[Metric]:
    """Yields the metrics of single methods, from the records of those registered so far (`Method.metrics`)."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, method in algorithms.METHODS.items():
        for described in method.metrics.items():
            names.setdefault(described, []).append(f'`{name}`')
    for (key, meaning), methods in names.items():
        yield Metric((key,), ', '.join(methods), meaning)


def by_key() -> dict[str, Metric]:
    """Returns every metric with its description."""
    return {key: metric for metric in (*COMMON, *of_methods()) for key in metric.keys}
