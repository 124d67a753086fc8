"""Every key of a configuration, its default and its meaning. The other files in configs/ change what they need.

    python launch.py --config=configs/digits.py --config.seed=1 --config.federation.alpha=0.5
    python launch.py --help federation.alpha

Settings are named after a colon: `configs/cifar10.py` is the paper's reading (where the paper is silent, mostly the
authors' code fills in); `configs/cifar10.py:code` trains as the authors' published code does, except for the few
differences under "What `:code` leaves" in docs/ledger.md.

Checks, help, the table in docs/options.md and HParams follow from this table alone: the comment after a key is its
meaning, and `key` (semisfl_jax/core/keys.py) has its values and its readers. A `feature` is read by the methods that
have it among their `uses` (semisfl_jax/algorithms), and no other method takes a change of the key. In methods without
its `part`, and at the values of other keys under `idle`, a key has no effect, and the command says so. The options of
single methods, such as config.fedmatch.helpers, are in docs/options.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict, config_dict

import semisfl_jax as sfl
from semisfl_jax.core.errors import UserError, use_one_of
from semisfl_jax.core.keys import key

LARGEST_SEED = 2**32 - 1
STRONG = ('fixmatch', 'uda')  # objectives with strong views
OTHER_VARIANTS = {'augment.randaugment': ('semifl', 'fedmatch')}  # of RandAugment, without magnitude and cutout
NO_PSEUDO_LABELS = {'pseudo_labels': 'none'}


@dataclass(frozen=True)
class Run:
    """The run."""

    seed: int = key(0, at_least=0, at_most=LARGEST_SEED)  # the only source of randomness: weights, cohorts, batches,
    # views, split (or data.partition_seed)
    seeds: tuple[int, ...] = ()  # (0, 1, 2): one trial for each, in one program, each with a folder seed_N; leave
    # `seed` at 0
    algorithm: str = key('semisfl', choices=lambda: sfl.algorithms.METHODS)  # fedswitch_sl: SemiSFL without clustering;
    # semisfl_prior: with client priors, of no paper; splitfed: supervised, on data.client_labels with k_s=0; for dense
    # tasks (data.tasks), with data.client_labels=-1 and k_s=0: m_fed, mfed_fl, mfed_local
    setting: str = key('harmonized', choices=('harmonized', 'official'))  # for baselines: harmonized: SemiSFL's
    # protocol, all keys unchanged; the method itself is as its authors have it ("What harmonized means" in
    # docs/ledger.md) | official: the values of its own papers or their code instead (`official` in its file in
    # semisfl_jax/algorithms), unless overridden on the command line
    official_keys: tuple[str, ...] = ()  # keys set from the papers; filled in by 'official', not by the user
    rounds: int = key(1000, at_least=1)  # may be increased later: the same command then resumes from where it stopped
    eval_every: int = key(10, at_least=1)  # rounds between evaluations; the last round is always evaluated
    eval_batch_size: int = key(500, at_least=1)  # images at a time in an evaluation
    checkpoint_every: int = key(50, at_least=1)  # rounds between checkpoints; the last round is always saved
    checkpoints_kept: int = key(2, at_least=1)  # with several seeds, at least 2 of each trial
    diagnostics_every: int = key(0, at_least=0)  # rounds between files in diagnostics/: pseudo-labels per class and
    # client, queue, teacher-student gap; also after the last round; 0: none. Does not affect the run
    precision: str = key('tf32', choices=('float32', 'tf32', 'bfloat16'))  # of the arithmetic, not of the weights;
    # tf32: float32 with products in TensorFloat-32 if the device supports it (GPUs since Ampere; a CPU uses float32) |
    # bfloat16: of activations
    deterministic: bool = True  # on a GPU, use only bitwise reproducible kernels; False may be faster
    compilation_cache: bool = True  # keep compiled programs in ~/.cache/semisfl_jax, so that later starts are fast;
    # once a run of a process has done so, all later ones of this process do
    k_s_rule: str = key('auto', choices=('auto', 'paper', 'code', 'coverage', 'fixed'))  # how K_s adapts: paper | code:
    # by losses | coverage: as paper, but set to no less than k_s times the share of images without a confident label |
    # auto: paper in semisfl, coverage in semisfl_prior, fixed elsewhere


@dataclass(frozen=True)
class Parallel:
    """Hardware."""

    devices: int = key(1, at_least=0)  # how many share the active clients, or the trials of `seeds`; 0: as many as fit,
    # which on a CPU is its cores, or 1 for split methods. Changes the order of sums over clients, and nothing for
    # `seeds`. With 0 a run that resumes on a machine with more or fewer devices goes on with those
    coordinator: str = ''  # several processes: HOST:PORT of process 0 | 'auto': from Slurm, Cloud TPU, …
    num_processes: int = key(1, at_least=1)  # with HOST:PORT; `devices` counts all processes, the same number in each
    process_id: int = key(0, at_least=0)  # with HOST:PORT: 0 .. num_processes - 1, different in each process
    trials: str = key('auto', choices=('auto', 'vmap', 'loop'))  # several seeds: vmap: all at once | loop: in turn |
    # auto: loop on a CPU, vmap elsewhere


@dataclass(frozen=True)
class Data:
    """Data."""

    name: str = 'cifar10'  # 'digits', 'stl10', 'image100', 'cinic10', 'svhn_cropped' or another TFDS image set |
    # 'folder' (image_folder) | with dense tasks: 'digit_scenes', 'mnist_scenes', 'pascal_context', 'oxford_iiit_pet',
    # 'coco/2017_panoptic'
    data_dir: str = ''  # '' means $TFDS_DATA_DIR, or if unset the default of tensorflow-datasets
    num_labeled: int = key(4000, at_least=1)  # labeled images in total, taken from the training split; unused if all
    # images belong to clients that know their labels (client_labels=-1 with k_s=0; but see
    # federation.labeled_partition)
    labeled_split: str = key('natural', choices=('natural', 'balanced'))  # natural: stratified by class frequency |
    # balanced: equal per class
    client_labels: int = key(0, at_least=-1)  # how many of `num_labeled` are at the clients instead of the server; -1:
    # clients know the labels of all their images (upper bounds); the server keeps its own, or with k_s=0 has none
    num_unlabeled: int = key(0, at_least=0)  # how many of the remaining images the clients share without labels, by
    # class frequency (but see federation.mismatch), the others not being used; 0: all
    num_validation: int = key(0, at_least=0)  # training images held out, by class frequency, before all others are
    # dealt; drawn with the seed of the partition, and not used unless eval_split='validation'
    eval_split: str = key('test', choices=('test', 'validation'))  # what is scored: the test images | the held-out
    # ones, to choose settings by; then no test image is read
    tasks: tuple[str, ...] = key((), feature='tasks')  # dense tasks, for methods that train them: of 'semseg', 'parts',
    # 'saliency', 'edges', 'depth', 'stuff', 'keypoints', those that the data set has; client n works on task n mod
    # their number
    images_of_tasks: tuple[int, ...] = key((), feature='tasks')  # dense tasks: how many images the clients of each task
    # share, in the order of `tasks`, in place of num_unlabeled; 0: all that have a truth for it; (): as num_unlabeled
    task_images: str = key('shared', choices=('shared', 'disjoint'), feature='tasks')  # shared: the clients of each
    # task divide all images that have a truth for it | disjoint: all clients divide the images
    residency: str = key('device', choices=('device', 'host'))  # host: client images stay in host memory, for sets too
    # large for the device
    fake: bool = False  # synthetic images of the real shapes; marks every output as fake
    fake_size: int = key(0, at_least=0, at_most=10**7)  # number of synthetic training images; 0: as many as in the real
    # data set
    partition_seed: int = key(-1, at_least=-1, at_most=LARGEST_SEED)  # seed of the labeled set and the split of the
    # data; -1: that of the run, so that each of several `seeds` has its own split; 0 or more: one split for all of them
    partition_file: str = ''  # use the split in this partition.npz instead of drawing one
    cache_dir: str = ''  # decoded arrays, '' means ~/.cache/semisfl_jax
    image_size: int = key(0, at_least=0, at_most=4096)  # resize to this side (image100 and unequal images), 0: keep;
    # sets with dense tasks: 48 pixels in scenes, 512 in pascal_context, 256 in coco, 128 in oxford_iiit_pet
    pad_to: int = key(0, at_least=0, at_most=4096)  # pad with zeros to this side, after resizing, the image in the
    # center: 32 makes 28x28 images fit the 4x4 pooling of resnet9; 0: no padding
    class_list: str = ''  # image100: a text file with one WordNet id per line
    image_folder: str = ''  # data.name='folder': images of your own, train/CLASS/* and test/CLASS/*, resized to
    # data.image_size; image100: an ImageNet folder with train/ and val/, '' means TFDS imagenet2012; cinic10: its
    # folder with train/ and test/, '' means cinic10/ in the TFDS data directory; pascal_context: the folder of
    # PASCAL_MT.tgz, with ImageSets/Context/ and JPEGImages/


@dataclass(frozen=True)
class Federation:
    """Federation."""

    num_clients: int = key(30, at_least=1)  # N
    num_active: int = key(10, at_least=1)  # N_h, redrawn each round, uniformly and without replacement
    partition: str = key('uniform', choices=lambda: sfl.data.PARTITIONS)  # how clients' images are split: uniform:
    # equally many of each class | dirichlet: one draw over classes for each client | dirichlet_class: one draw over
    # clients for each class, as in the code of SemiFL and of FedDure | classes: some classes for each client
    alpha: float = key(0.1, above=0)  # Dirichlet concentration: small is skewed
    min_images: int = key(10, at_least=0)  # dirichlet_class: drawn again until every client has at least so many
    # unlabeled images
    max_images: int = key(0, at_least=0)  # dirichlet_class: and at most so many; 0: no bound
    classes_per_client: int = key(2, at_least=1)  # classes: random ones, each at equally many clients in equal parts
    client_map: str = key('auto', choices=('auto', 'vmap', 'loop'))  # vmap: all clients at once | loop | auto: loop on
    # a CPU, vmap elsewhere
    client_chunk: int = key(0, at_least=0)  # clients computed at a time, to bound memory; 0: all active ones
    labeled_partition: str = key('same', choices=lambda: ('same', *sfl.data.PARTITIONS))  # how clients' labeled images
    # (data.client_labels) are split: same: like the unlabeled ones, a client may get none | a rule of
    # federation.partition, with a draw of its own; uniform as in the authors' code. With client_labels=-1 and k_s=0 a
    # rule deals `num_labeled` of the images
    labeled_alpha: float = key(0.0, at_least=0)  # their concentration, with a rule of their own; 0: federation.alpha
    min_labeled: int = key(10, at_least=0)  # with labeled_partition='dirichlet_class', the least that every client gets
    mismatch: float = key(-1.0, at_least=-1, at_most=1)  # share of a client's unlabeled images from classes it has no
    # label of, 0 to 1; federation.partition then decides how many images a client gets, but not their classes; -1: off
    mu: int = key(7, at_least=0)  # unlabeled images per labeled one in a client batch, when clients have labels; 0:
    # their labels are ignored
    ignored_labeled: str = key('dropped', choices=('dropped', 'unlabeled'))  # with mu=0, the clients' labeled images:
    # dropped: not used, as in the authors' code | unlabeled: split along with the unlabeled ones


@dataclass(frozen=True)
class Model:
    """Model."""

    name: str = key('alexnet', choices=lambda: sfl.models.EVERY_ARCHITECTURE)  # resnet9 is FedDure's, resnet9_plain
    # FedMatch's, without BatchNorm and biases, wresnet28x2 SemiFL's, mlp5000 and cnn13 Fed-SHVR's, mcmahan_cnn and
    # mcmahan_2nn FedAvg's; mlp200 is for CPUs
    split_index: int | None = key(None, feature='cut')  # layers at the client, a residual block counting as one; None:
    # the paper's cut, after the convolutions
    output_stride: int = key(8, feature='tasks')  # dense tasks: of the encoder's last map: 8, 16 or 32 (dilation in
    # place of stride)
    weights: str = key('', feature='tasks')  # dense tasks: a file with which encoders start: a PyTorch state dict of
    # torchvision's ResNet, or this package's own names (.npz, .safetensors, .pth) | the folder of a finished run of
    # m_fed or mfed_fl: the mean of the encoders of its tasks; of several seeds, each seed starts with its own
    projection: str = key('mlp', choices=('mlp', 'linear', 'none'), part='projection head')  # the projection head
    projection_dim: int = key(128, at_least=1, part='projection head', idle={'model.projection': 'none'})  # its outputs
    convolution: str = key('auto', choices=('auto', 'direct', 'winograd', 'native', 'patches'))  # winograd: direct,
    # with less arithmetic in wide 3 x 3 convolutions | auto: winograd on a CPU, native elsewhere
    batch_norm_variance: str = key('biased', choices=('biased', 'unbiased'))  # estimator for BatchNorm's running
    # variance: biased, as in Flax: squares divided by n, the number of rows times pixels | unbiased, as in PyTorch: by
    # n - 1
    recompute: bool = False  # True: keep only the outputs of convolutions and products for a backward pass, and compute
    # again what is between them (BatchNorm, ReLU, pooling): half the memory of models with BatchNorm


@dataclass(frozen=True)
class Round:
    """A round. These are the fields of HParams, too."""

    k_s: int = key(100, at_least=0)  # supervised iterations in the first round; 0: the server has no images of its own,
    # which is possible in fedavg, fedprox, fedmatch, feddure, fed_shvr, fed_sh and fed_svr, and always so in splitfed,
    # m_fed, mfed_fl and mfed_local
    k_u: int = key(50, at_least=1, part='clients')  # cross-entity iterations, or those of a client's local training
    batch_size: int = key(64, at_least=1, at_most=10**6, part='clients')  # B, images per client and iteration
    server_batch_size: int = key(64, at_least=1, at_most=10**6, idle={'k_s': 0})  # B_s
    pre_rounds: int = key(0, at_least=0, feature='pre-rounds', part='clients')  # number of initial rounds without a
    # cross-entity phase
    sampling: str = key('epochs', choices=('epochs', 'replicated'), feature='sampling')  # the order of images in
    # batches, at server and clients: epochs: every image once per pass, in a new random order | replicated, as in the
    # authors' loaders: a list too short for the batches of a (first) round is repeated until it is long enough, then
    # shuffled, so that a batch may contain an image twice; an incomplete last batch is dropped

    # --- optimization: fresh momentum each round, lr falls to lr_min over lr_rounds

    optimizer: str = key('sgd', choices=('sgd', 'adam'))  # adam: with momentum as beta_1 and nesterov=False
    lr: float = key(0.02, above=0)  # learning rate of the first round
    lr_min: float = key(0.005, at_least=0)  # learning rate at the end
    lr_rounds: int = key(1000, at_least=0)  # later rounds stay at lr_min; 0 means `rounds`
    lr_schedule: str = key('cosine', choices=('cosine', 'poly'))  # how it falls; poly: as (1 - round / lr_rounds)^0.9
    momentum: float = key(0.9, at_least=0, below=1)  # of SGD, or beta_1 of Adam
    nesterov: bool = key(True, idle={'momentum': 0})  # Nesterov's form of the momentum
    weight_decay: float = key(5e-4, at_least=0)  # the weight of an L2 term

    # --- losses

    threshold: float = key(
        0.95, at_least=0, at_most=1, objectives=(*STRONG, 'pseudo_label'), idle={'pseudo_labels': ('true', 'none')}
    )  # tau: minimum confidence for a pseudo-label to count; 0: all count
    pseudo_labels: str = key('method', choices=('method', 'true', 'none'), feature='pseudo-labels')  # an upper and a
    # lower line for a method: true: the true labels in place of its pseudo-labels, and all count (an oracle) | none: no
    # pseudo-label counts; all else as in the method, but K_s stays as it begins: there is no unlabeled loss to adapt to
    temperature: float = key(0.2, above=0, feature='clustering', part='clients')  # kappa of the contrastive terms
    consistency_weight: float = key(
        1.0, at_least=0, feature='consistency', part='clients', objectives=(*STRONG, 'pseudo_label', 'mean_teacher')
    )  # weight of H in the cross-entity phase, or of the unlabeled loss in local training
    clustering_weight: float = key(1.0, at_least=0, feature='clustering', part='clients')  # weight of the clustering
    # regularization C in the cross-entity phase (Eq. 6)
    contrastive_weight: float = key(1.0, at_least=0, feature='clustering', part='clients')  # weight of the
    # supervised-contrastive loss T in the supervised phase (Eq. 4)
    supervised_references: str = key(
        'teacher_keys', choices=('teacher_keys', 'student_supcon'), feature='clustering', part='clients'
    )  # what T compares with; student_supcon: exactly Eq. 3

    # --- memory queue

    queue: str = key(
        'two_level', choices=('two_level', 'single_ring', 'off'), feature='clustering', part='clients'
    )  # single_ring: as in the authors' code
    queue_size: int = key(1024, at_least=1, part='memory queue', idle={'queue': 'off'})  # slots per level
    queue_stride: int = key(10, at_least=1, part='memory queue', idle={'queue': ('off', 'single_ring')})  # two_level:
    # iterations after which unlabeled keys also enter the supervised level
    queue_empty_slots: str = key(
        'auto', choices=('auto', 'ignore', 'count'), feature='clustering', part='clients', idle={'queue': 'off'}
    )  # count: zeros in the denominator | auto: count in single_ring

    # --- teacher

    ema_decay: float = key(0.99, at_least=0, below=1, feature='teacher')  # gamma
    ema_warmup: bool = key(True, feature='teacher')  # a_t = min(1 - 1 / (t + 1), gamma)
    client_teacher_ema: bool = key(False, feature='client teacher', part='clients')  # Eq. 8: clients also update their
    # copy of the teacher bottom
    client_teacher_bn: str = key('eval', choices=('eval', 'train'), feature='client teacher', part='clients')  # train:
    # the teacher bottom at the clients uses batch statistics, and dropout if the model has any in it (cnn13)
    server_teacher_bn: str = key(
        'eval', choices=('eval', 'train_first_round'), feature='clustering', part='clients'
    )  # train_first_round: so does the one at the server in the first round, and updates its running statistics, as in
    # the authors' code until it first tests the teacher in evaluation mode


@dataclass(frozen=True)
class Local:
    """Local training at the clients: all methods but semisfl, semisfl_prior, fedswitch_sl and supervised_only."""

    objective: str = key(
        'fixmatch', choices=('supervised', *STRONG, 'pseudo_label', 'mean_teacher'), feature='objective'
    )  # of fedavg and fedprox; supervised: labeled images only | pseudo_label: labels once a round, by the received
    # model | mean_teacher; both without strong views
    epochs: int = key(0, at_least=0, feature='local')  # passes of a client over its images (semifl: confident ones) in
    # a round; 0: k_u iterations
    steps: str = key('auto', choices=('auto', 'unlabeled', 'longest'), feature='steps')  # iterations of these passes:
    # unlabeled: over the unlabeled images, rounded up | longest: over the unlabeled or the labeled ones, whichever
    # takes longer, rounded down | auto: as in the method's paper: longest in fed_shvr, fed_sh and fed_svr, unlabeled
    # elsewhere
    weighting: str = key('auto', choices=('auto', 'samples', 'uniform'), feature='local')  # of the average over
    # clients: samples: by the number of images that each trains on | uniform | auto: as in the method's paper: samples
    # in fedavg, fedprox, feddure, splitfed and those of Fed-SHVR and M-Fed, uniform elsewhere
    optimizer_state: str = key('auto', choices=('auto', 'fresh', 'kept'), feature='kept optimizers')  # kept: a client
    # continues with the optimizer state of its last round, and so does the server of semifl | fresh | auto: kept in
    # semifl and mfed_local, fresh elsewhere
    prox: float = key(0.01, at_least=0, feature='prox')  # mu of fedprox
    teacher_decay: float = key(0.99, at_least=0, below=1, feature='mean teacher', idle=NO_PSEUDO_LABELS)  # of the
    # teacher of a client with objective 'mean_teacher'
    input_noise: float = key(0.0, at_least=0, feature='mean teacher', objectives=('mean_teacher',))  # mean_teacher:
    # standard deviation of Gaussian noise on normalized images, drawn for teacher and student each; 0.15 in its
    # authors' code. Without views and dropout it is all that the two differ in
    ramp_rounds: int = key(
        0, at_least=0, feature='objective', objectives=('pseudo_label', 'mean_teacher'), idle=NO_PSEUDO_LABELS
    )  # pseudo_label, mean_teacher: rounds in which the weight of the unlabeled loss rises, linearly from 0, or as
    # exp(-5 (1 - round / ramp_rounds)^2); 0: no ramp


@dataclass(frozen=True)
class Uda:
    """Objective 'uda' of local training."""

    temperature: float = key(1.0, above=0, feature='uda', idle=NO_PSEUDO_LABELS)  # of the labels: below 1 sharpens them
    tsa: str = key('off', choices=('off', 'linear', 'exp', 'log'), feature='uda')  # training signal annealing of the
    # clients' labels, over `lr_rounds` rounds as the learning rate


@dataclass(frozen=True)
class Frequency:
    """Adaptation of K_s."""

    alpha: float = key(1.5, at_least=1)  # by which K_s is divided
    beta: float = key(8.0, at_least=0)  # K_min = beta * labeled share * K_u
    period: int = key(10, at_least=1)  # rounds averaged into one observation
    horizon: int = key(100, at_least=1)  # rounds whose observations are compared at a check
    check_every: int = key(100, at_least=1)  # rounds between checks; 1: as in the paper's Algorithm 1


@dataclass(frozen=True)
class Cost:
    """Costs: bytes and simulated seconds, which do not affect the training."""

    enabled: bool = True  # bytes_up, bytes_down and simulated_seconds in the metrics
    bill_model_size: str = key('actual', choices=('actual', 'paper'))  # of whole models; paper: alexnet 127 MiB, vgg13
    # 508, vgg16 528
    bandwidth_unit: str = key('Mbps', choices=('Mbps', 'MBps'))  # Mbps, as in the paper | MBps, which matches its times
    client_out: tuple[float, float] = (0.8, 8.0)  # lowest and highest upload bandwidth, drawn for each client and round
    client_in: tuple[float, float] = (10.0, 20.0)  # the same for download
    devices: tuple[str, ...] = ('jetson_tx2', 'jetson_xavier_nx', 'jetson_agx_xavier')  # or 'jetson_nano'; in equal
    # numbers
    efficiency: float = key(0.3, above=0, at_most=1)  # share of a device's float32 peak that training reaches, also at
    # the server
    server_teraflops: float = key(38.7, above=0)  # float32 peak of the server: one NVIDIA RTX A6000


@dataclass(frozen=True)
class Failures:
    """Clients that fail: they do not contribute to the round's training, but what they had sent is billed."""

    before: float = key(0.0, at_least=0, at_most=1)  # probability that an active client never starts
    inside: float = key(0.0, at_least=0, at_most=1)  # probability that it starts and then fails at a random moment
    trace: str = ''  # instead: a CSV file of round (from 1), client (from 0), done (share; 0: never started)
    trace_hash: str = ''  # SHA-256 of its content; filled in by a run, which goes on with no other trace
    deadline_seconds: float = key(0.0, at_least=0)  # clients whose own round takes longer are dropped; 0: no deadline


@dataclass(frozen=True)
class Augment:
    """Augmentation."""

    flip: bool = True  # horizontal, p = 0.5
    crop: float = key(0.125, at_least=0, below=1)  # reflect-pad by this share of the side, then crop at random; 0: none
    scale_min: float = key(1.0, at_least=0.25, at_most=4)  # then scale about the center by a factor drawn from here to
    # scale_max; both 1: off. Pixels from outside are black, and without truth in maps
    scale_max: float = key(1.0, at_least=0.25, at_most=4)  # the largest factor
    rotate: float = key(0.0, at_least=0, at_most=180)  # at the same time, turn by up to so many degrees either way
    randaugment: str = key('mc', choices=('mc', 'semifl', 'fixmatch', 'fedmatch'), objectives=STRONG)  # RandAugment
    # variant: mc: FixMatch-pytorch's, used by the authors | semifl | fixmatch: google-research's | fedmatch; they
    # differ in operations, ranges and probabilities
    operations: int = key(2, at_least=0, at_most=100, objectives=STRONG)  # RandAugment n, 0: none; 'fedmatch' always
    # has 6, unless this is 0
    magnitude: int = key(
        10, at_least=2, at_most=11, objectives=STRONG, idle={'augment.operations': 0, **OTHER_VARIANTS}
    )  # RandAugment m: v is drawn from 1 .. m - 1; only 'mc' and 'fixmatch'
    cutout: int = key(16, at_least=0, objectives=STRONG, idle=OTHER_VARIANTS)  # nominal pixels, 0: none; only 'mc' and
    # 'fixmatch'; the others do not end with cutout
    supervised: str = key('strong', choices=('strong', 'weak'))  # both views of the supervised phase


GROUPS = {
    'parallel': Parallel,
    'data': Data,
    'federation': Federation,
    'model': Model,
    'local': Local,
    'uda': Uda,
    'frequency': Frequency,
    'cost': Cost,
    'failures': Failures,
    'augment': Augment,
}
KEYS: dict[str, dataclasses.Field] = {
    **{field.name: field for keys in (Run, Round) for field in dataclasses.fields(keys)},
    **{f'{group}.{field.name}': field for group, keys in GROUPS.items() for field in dataclasses.fields(keys)},
}
CODE = {  # what the authors' code has in place of the paper's
    'data.partition_seed': 2020,
    'federation.labeled_partition': 'uniform',
    'queue': 'single_ring',
    'k_s_rule': 'code',
    'client_teacher_bn': 'train',
    'server_teacher_bn': 'train_first_round',
    'sampling': 'replicated',
    'model.batch_norm_variance': 'unbiased',
}


def get_config(settings: str = 'paper') -> ConfigDict:
    """The paper's hyper-parameters for a run of 1,000 rounds. `settings`: 'paper' or 'code'."""
    if settings not in ('paper', 'code'):
        hint = use_one_of(settings, ('paper', 'code'))
        raise UserError(f"unknown settings '{settings}' after the colon of --config; {hint}")
    nested: dict[str, Any] = {}
    for name, field in {**KEYS, **sfl.algorithms.registry.option_fields()}.items():
        group, _, last = name.rpartition('.')
        values = nested.setdefault(group, {}) if group else nested
        values[last] = config_dict.placeholder(int) if name == 'model.split_index' else field.default
    config = ConfigDict(nested)
    if settings == 'code':
        config.update_from_flattened_dict(CODE)
    return config
