"""The keys of every configuration: those of a round are the fields of HParams (core/hparams.py), all others are below.

A group that one module alone reads is declared there (`GROUPS`), as are the options of a method. `key` (base/keys.py)
says what a declaration holds. A `feature` is read by the methods that have it among their `uses`, and no other method
takes a change of the key. In methods without its `part`, and at the values of other keys under `idle`, a key has no
effect, and the command says so.
"""

import dataclasses
from collections import ChainMap
from typing import Any

from semisfl_jax import algorithms, augment, costs, data, models
from semisfl_jax.base.keys import declared, key
from semisfl_jax.core import frequency, hparams

TRACKERS = ('tensorboard', 'wandb', 'mlflow')
AUTO = 'auto'  # leaves a key to the method, or to the machine
LARGEST_SEED = 2**32 - 1

# fmt: off
# Tables: name, type and default of a key, its values and readers, its meaning


@dataclasses.dataclass(frozen=True)
class Run:
    """The run."""

    seed: int = key(0, at_least=0, at_most=LARGEST_SEED, help='the only source of randomness: weights, cohorts, '
        'batches, views, split (or data.partition_seed)')
    seeds: tuple[int, ...] = key((), help='(0, 1, 2): one trial for each, in one program, each with a folder seed_N; '
        'leave `seed` at 0')
    algorithm: str = key('semisfl', choices=algorithms.METHODS, help='fedswitch_sl: SemiSFL without '
        'clustering; semisfl_prior: with client priors, not from a paper; splitfed: supervised, on data.client_labels '
        'with k_s=0; for dense tasks (data.tasks), with data.client_labels=-1 and k_s=0: m_fed, mfed_fl, mfed_local')
    setting: str = key('harmonized', choices=('harmonized', 'official'), help="harmonized: SemiSFL's protocol "
        'for all methods, no key changed; only the algorithm is that of its authors ("What harmonized means" in '
        'docs/ledger.md) | official: the values of its own papers or their code instead (`official` in its file in '
        'semisfl_jax/algorithms), unless overridden on the command line')
    official_keys: tuple[str, ...] = key((), help="keys that setting='official' has set; do not set it yourself")
    rounds: int = key(1000, at_least=1, help='may be increased later: the same command then resumes from where it '
        'stopped')
    eval_every: int = key(10, at_least=1, help='rounds between evaluations; the last round is always evaluated')
    eval_batch_size: int = key(500, at_least=1, help='images at a time in an evaluation')
    checkpoint_every: int = key(50, at_least=1, help='rounds between checkpoints; the last round is always saved')
    checkpoints_kept: int = key(2, at_least=1, help='newest checkpoints to keep')
    diagnostics_every: int = key(0, at_least=0, help='rounds between files in diagnostics/: pseudo-labels per class '
        'and client, queue, teacher-student gap; also after the last round; 0: none. Does not affect the run')
    trackers: tuple[str, ...] = key(('tensorboard',), added=True, help="where a run with a folder also writes its "
        "metrics, of 'tensorboard', 'wandb' and 'mlflow', which take server and project from their own environment "
        'variables; (): nowhere')
    precision: str = key('tf32', choices=('float32', 'tf32', 'bfloat16'), help='of arithmetic; weights stay float32. '
        'tf32: float32 with products in TensorFloat-32 if the device supports it (GPUs since Ampere; a CPU uses '
        'float32) | bfloat16: of activations')
    deterministic: bool = key(True, help='on a GPU, use only bitwise reproducible kernels; False may be faster')
    compilation_cache: bool = key(True, help='keep compiled programs in ~/.cache/semisfl_jax, so that later starts are '
        'fast; once one run of a process does, all later runs of the process do')
    k_s_rule: str = key('auto', choices=(AUTO, *algorithms.method.K_S_RULES), help='how K_s adapts: paper | '
        'code: by losses | coverage: as paper, but at least k_s times the share of images without a '
        'confident label | auto: the rule of the method')


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Hardware."""

    devices: int = key(1, at_least=0, help='how many share the active clients, or the trials of `seeds`; 0: as many as '
        'fit, which on a CPU is its cores, or 1 for split methods. Changes the order of sums over clients, and nothing '
        'for `seeds`. With 0, a run resumes on a machine with more or fewer devices and uses all of them')
    coordinator: str = key('', help="several processes: HOST:PORT of process 0 | 'auto': asks Slurm, Cloud TPU, …")
    num_processes: int = key(1, at_least=1, help='with HOST:PORT; `devices` counts all processes, the same number in '
        'each')
    process_id: int = key(0, at_least=0, help='with HOST:PORT: 0 .. num_processes - 1, different in each process')
    trials: str = key('auto', choices=('auto', 'vmap', 'loop'), help='several seeds: vmap: all at once | loop: in turn '
        '| auto: loop on a CPU, vmap elsewhere')


@dataclasses.dataclass(frozen=True)
class Data:
    """Data."""

    name: str = key('cifar10', help="'digits', 'stl10', 'image100', 'cinic10', 'svhn_cropped' or another TFDS image "
        "set | 'folder' (image_folder) | with dense tasks: 'digit_scenes', 'mnist_scenes', 'pascal_context', 'coco', "
        "'oxford_iiit_pet', 'coco/2017_panoptic'")
    data_dir: str = key('', help="'' means $TFDS_DATA_DIR, or if unset the default of tensorflow-datasets")
    num_labeled: int = key(4000, at_least=1, help='labeled images in total, taken from the training split; unused if '
        'all images belong to clients that know their labels (client_labels=-1 with k_s=0; but see '
        'federation.labeled_partition)')
    labeled_split: str = key('natural', choices=('natural', 'balanced'), help='natural: stratified by class frequency '
        '| balanced: equal per class')
    client_labels: int = key(0, at_least=-1, help='how many of `num_labeled` are at the clients instead of the server; '
        '-1: clients know the labels of all their images (upper bounds); the server keeps its own, or with k_s=0 has '
        'none')
    num_unlabeled: int = key(0, at_least=0, help='how many of the remaining images the clients share without labels, '
        'by class frequency (but see federation.mismatch); the rest is not used. 0: all')
    num_validation: int = key(0, at_least=0, added=True, help='training images held out, by class frequency, before '
        "the split among server and clients; drawn with the seed of the split; used only by eval_split='validation'")
    eval_split: str = key('test', choices=('test', 'validation'), added=True, help='images that are scored: test | '
        'validation: the held-out ones, to choose settings; no test image is read then')
    tasks: tuple[str, ...] = key((), feature='tasks', help="dense tasks, for methods that train them: of 'semseg', "
        "'parts', 'saliency', 'edges', 'depth', 'stuff', 'keypoints', 'instances', 'panoptic', 'persons', those that "
        'the data set has; of T tasks, client n works on task n mod T')
    images_of_tasks: tuple[int, ...] = key((), feature='tasks', added=True, help='dense tasks: how many images the '
        'clients of each task share, in the order of `tasks`, in place of num_unlabeled; 0: all with ground truth for '
        'the task; (): as num_unlabeled')
    task_images: str = key('shared', choices=('shared', 'disjoint'), feature='tasks', help='shared: the clients of '
        'each task divide all images with ground truth for it | disjoint: all clients divide the images')
    residency: str = key('device', choices=('device', 'host'), help='host: client images stay in host memory, for sets '
        'too large for the device')
    fake: bool = key(False, help='synthetic images of the real shapes; marks every output as fake')
    fake_size: int = key(0, at_least=0, at_most=10**7, help='number of synthetic training images; 0: as many as in the '
        'real data set')
    partition_seed: int = key(-1, at_least=-1, at_most=LARGEST_SEED, help='seed of the labeled set and the split of '
        'the data; -1: that of the run, so that each of several `seeds` has its own split; 0 or more: one split for '
        'all of them')
    partition_file: str = key('', help='use the split in this partition.npz instead of drawing one')
    cache_dir: str = key('', help="folder of decoded arrays; '' means ~/.cache/semisfl_jax")
    image_size: int = key(0, at_least=0, at_most=4096, help='resize to this side (image100 and unequal images), 0: '
        'keep; sets with dense tasks: 48 pixels in scenes, 512 in pascal_context, 256 in coco, 128 in oxford_iiit_pet')
    pad_to: int = key(0, at_least=0, at_most=4096, help='pad with zeros to this side, after resizing, the image in the '
        'center: 32 makes 28x28 images fit the 4x4 pooling of resnet9; 0: no padding')
    normalization: str = key('auto', choices=('auto', 'data', 'imagenet'), added=True, help='by whose mean and '
        "deviation images are normalized: data: the data set's | imagenet: ImageNet's, of three channels | auto: "
        'imagenet in classification with model.weights, else data')
    class_list: str = key('', help='image100: a text file with one WordNet id per line')
    image_folder: str = key('', help="data.name='folder': images of your own, train/CLASS/* and test/CLASS/*, resized "
        "to data.image_size; image100: an ImageNet folder with train/ and val/, '' means TFDS imagenet2012; cinic10: "
        "its folder with train/ and test/, '' means cinic10/ in the TFDS data directory; pascal_context: the folder of "
        'PASCAL_MT.tgz, with ImageSets/Context/ and JPEGImages/; coco: the folder with train2017/, val2017/ and '
        'annotations/')


@dataclasses.dataclass(frozen=True)
class Federation:
    """Federation."""

    num_clients: int = key(30, at_least=1, help='N, all clients')
    num_active: int = key(10, at_least=1, help='N_h, clients per round, redrawn uniformly and without replacement')
    partition: str = key('uniform', choices=ChainMap[str, Any]({data.NATURAL: None}, data.PARTITIONS),
        help="how clients' images are split: uniform: equally many of each class | dirichlet: one draw over classes "
        'for each client | dirichlet_class: one draw over clients for each class, as in the code of SemiFL and of '
        'FedDure | classes: some classes for each client | natural: by the clients that the data name')
    alpha: float = key(0.1, above=0, help='Dirichlet concentration: small is skewed')
    min_images: int = key(10, at_least=0, help='dirichlet_class: the draw is repeated until every client has at '
        'least this many unlabeled images')
    max_images: int = key(0, at_least=0, help='dirichlet_class: and at most this many; 0: no limit')
    classes_per_client: int = key(2, at_least=1, help='classes: number of random classes of a client; each class is '
        'at equally many clients, in equal parts')
    client_map: str = key('auto', choices=('auto', 'vmap', 'loop'), help='vmap: all clients at once | loop | auto: '
        'loop on a CPU, vmap elsewhere')
    client_chunk: int = key(0, at_least=0, help='clients computed at a time, to bound memory; 0: all active ones')
    labeled_partition: str = key('same', choices=ChainMap[str, Any](data.PARTITIONS, {'same': None}),
        help="how clients' labeled images (data.client_labels) are split: same: like the unlabeled ones, so a client "
        'may get none | a rule of federation.partition, drawn separately (uniform in the authors\' code). With '
        'client_labels=-1 and k_s=0, a rule splits `num_labeled` of the images')
    labeled_alpha: float = key(0.0, at_least=0, help='Dirichlet concentration of a separate labeled_partition; 0: '
        'federation.alpha')
    min_labeled: int = key(10, at_least=0, help="with labeled_partition='dirichlet_class': labeled images that every "
        'client gets at least')
    mismatch: float = key(-1.0, at_least=-1, at_most=1, help="share of a client's unlabeled images from classes of "
        'which it has no label, 0 to 1; federation.partition then decides how many images a client gets, but not of '
        'which classes; -1: off')
    mu: int = key(7, at_least=0, help='unlabeled images per labeled one in a client batch, when clients have labels; '
        '0: their labels are ignored')
    ignored_labeled: str = key('dropped', choices=('dropped', 'unlabeled'), help="with mu=0, the clients' labeled "
        "images: dropped: not used, as in the authors' code | unlabeled: split along with the unlabeled ones")


@dataclasses.dataclass(frozen=True)
class Model:
    """Model."""

    name: str = key('alexnet', choices=models.EVERY_ARCHITECTURE, help="resnet9 is FedDure's, "
        "resnet9_plain FedMatch's, without BatchNorm and biases, wresnet28x2 SemiFL's, mlp5000 and cnn13 Fed-SHVR's, "
        "mcmahan_cnn and mcmahan_2nn FedAvg's; mlp200 is for CPUs; resnet18 and resnet50 are torchvision's, for images "
        'below 64 pixels with the stem usual for CIFAR: 3 x 3 at stride 1, no pooling')
    split_index: int | None = key(None, feature='cut', help='layers at the client; a residual block counts as one; '
        "None: the paper's cut, after the convolutions")
    output_stride: int = key(8, feature='tasks', help="dense tasks: stride of the encoder's last map: 8, 16 or 32 "
        '(dilation replaces stride)')
    weights: str = key('', help='file of initial weights of resnet18, resnet50 or the encoders of dense tasks: a '
        "PyTorch state dict of torchvision's ResNet, or this package's own names (.npz, .safetensors, .pth) | the "
        'folder of a finished run of m_fed or mfed_fl: the mean of the encoders of its tasks; of several seeds, each '
        'seed starts with its own')
    projection: str = key('mlp', choices=('mlp', 'linear', 'none'), part='projection head', help='the projection head')
    projection_dim: int = key(128, at_least=1, part='projection head', idle={'model.projection': 'none'},
        help='outputs of the projection head')
    convolution: str = key('auto', choices=('auto', 'direct', 'winograd', 'native', 'patches'),
        help='how convolutions are computed; winograd: direct, with less arithmetic in wide 3 x 3 ones | auto: '
        'winograd on a CPU, native elsewhere')
    batch_norm_variance: str = key('biased', choices=('biased', 'unbiased'), help="estimator for BatchNorm's running "
        'variance: biased, as in Flax: squares divided by n, the number of rows times pixels | unbiased, as in '
        'PyTorch: by n - 1')
    recompute: bool = key(False, added=True, help='True: keep only the outputs of convolutions and products for a '
        'backward pass, and recompute BatchNorm, ReLU and pooling between them: halves the memory of models with '
        'BatchNorm')


@dataclasses.dataclass(frozen=True)
class Failures:
    """Clients that fail: they do not contribute to the round's training, but what they had sent is billed."""

    before: float = key(0.0, at_least=0, at_most=1, help='probability that an active client never starts')
    inside: float = key(0.0, at_least=0, at_most=1, help='probability that it starts and then fails at a random moment')
    trace: str = key('', help='instead of probabilities, a CSV file: round (from 1), client (from 0), done (share; '
        '0: never started)')
    trace_hash: str = key('', added=True, help='SHA-256 of the trace; filled in by the run, which resumes with no '
        'other trace')
    deadline_seconds: float = key(0.0, at_least=0, help='clients whose own round takes longer are dropped; 0: no '
        'deadline')


# fmt: on
GROUPS = {
    'parallel': Parallel,
    'data': Data,
    'federation': Federation,
    'model': Model,
    **hparams.GROUPS,
    'frequency': frequency.FrequencyOptions,
    'cost': costs.CostOptions,
    'failures': Failures,
    'augment': augment.AugmentOptions,
}
KEYS = declared(Run) | declared(hparams.HParams)
for _group, _keys in GROUPS.items():
    KEYS |= declared(_keys, _group)
# A configuration may leave these to its method (`Method.auto`), which HParams knows nothing of
for _name in ('local.steps', 'local.weighting', 'local.optimizer_state'):
    _rules = KEYS[_name].metadata
    KEYS[_name] = key(AUTO, **{**_rules, 'choices': (AUTO, *_rules['choices'])})
