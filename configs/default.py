"""Every key of a configuration, its default and its meaning. The other files in configs/ change what they need.

    python launch.py --config=configs/cifar10.py --config.seed=1 --config.federation.alpha=0.5

Settings are named after a colon: `configs/cifar10.py` is the paper's reading (where the paper is silent, the
authors' code fills in); `configs/cifar10.py:code` trains as the authors' published code does, except for the few
differences under "What `:code` leaves" in docs/ledger.md.
"""

import dataclasses

from ml_collections import ConfigDict, config_dict

from semisfl_jax.algorithms.registry import option_groups
from semisfl_jax.core.errors import UserError, use_one_of


def get_config(settings: str = 'paper') -> ConfigDict:
    """The paper's hyper-parameters for a run of 1,000 rounds. `settings`: 'paper' or 'code'."""
    config = ConfigDict()

    # --- the run
    config.seed = 0  # the only source of randomness: weights, cohorts, batches, views, split (or data.partition_seed)
    config.seeds = ()  # (0, 1, 2): one trial for each, in one program, each with a folder seed_N; leave `seed` at 0
    config.algorithm = 'semisfl'  # 'semisfl' | 'supervised_only' | 'semifl' | 'fedmatch' | 'fedswitch' |
    # 'fedswitch_sl': SemiSFL without clustering | 'fedavg' | 'fedprox' | 'feddure' | 'fed_shvr' | 'fed_sh' |
    # 'fed_svr' | 'splitfed': supervised, on data.client_labels with k_s=0 | for dense tasks (data.tasks), with
    # data.client_labels=-1 and k_s=0: 'm_fed' | 'mfed_fl' | 'mfed_local'
    config.setting = 'harmonized'  # for baselines: SemiSFL's protocol, all keys unchanged; the method itself is as its
    # authors have it ("What harmonized means" in docs/ledger.md) | 'official': the values of the method's own papers
    # instead (`official` in its file in semisfl_jax/algorithms), unless overridden on the command line
    config.official_keys = ()  # keys set from the papers; filled in by 'official', not by the user
    config.rounds = 1000  # may be increased later: the same command then resumes from where it stopped
    config.eval_every = 10  # rounds between evaluations; the last round is always evaluated
    config.eval_batch_size = 500
    config.checkpoint_every = 50  # rounds between checkpoints; the last round is always saved
    config.checkpoints_kept = 2  # with several seeds, at least 2 of each trial
    config.diagnostics_every = 0  # rounds between files in diagnostics/: pseudo-labels per class and client, queue,
    # teacher-student gap; also after the last round; 0: none. Does not affect the run
    config.precision = 'tf32'  # of the arithmetic, not of the weights: 'float32' | 'tf32': float32 with products in
    # TensorFloat-32 if the device supports it (GPUs since Ampere; a CPU uses float32) | 'bfloat16' activations
    config.deterministic = True  # on a GPU, use only bitwise reproducible kernels; False may be faster
    config.compilation_cache = True  # keep compiled programs in ~/.cache/semisfl_jax, so that later starts are fast;
    # once a run of a process has done so, all later ones of this process do

    # --- hardware
    config.parallel = ConfigDict()
    config.parallel.devices = 1  # how many share the active clients, or the trials of `seeds`; 0: as many as fit, which
    # on a CPU is its cores, or 1 for split methods. Changes the order of sums over clients, and nothing for `seeds`.
    # With 0 a run that resumes on a machine with more or fewer devices goes on with those
    config.parallel.coordinator = ''  # several processes: HOST:PORT of process 0 | 'auto': from Slurm, Cloud TPU, …
    config.parallel.num_processes = 1  # with HOST:PORT; `devices` counts all processes, the same number in each
    config.parallel.process_id = 0  # with HOST:PORT: 0 .. num_processes - 1, different in each process
    config.parallel.trials = 'auto'  # several seeds: 'vmap', all at once | 'loop', in turn | 'auto': loop on a CPU,
    # vmap elsewhere

    # --- data
    config.data = ConfigDict()
    config.data.name = 'cifar10'  # 'digits', 'stl10', 'image100', 'cinic10', 'svhn_cropped' or another TFDS image set |
    # with dense tasks: 'digit_scenes', 'mnist_scenes', 'pascal_context', 'oxford_iiit_pet', 'coco/2017_panoptic'
    config.data.data_dir = ''  # '' means $TFDS_DATA_DIR, or if unset the default of tensorflow-datasets
    config.data.num_labeled = 4000  # labeled images in total, taken from the training split; unused if all images
    # belong to clients that know their labels (client_labels=-1 with k_s=0; but see federation.labeled_partition)
    config.data.labeled_split = 'natural'  # 'natural': stratified by class frequency | 'balanced': equal per class
    config.data.client_labels = 0  # how many of `num_labeled` are at the clients instead of the server;
    # -1: clients know the labels of all their images (upper bounds); the server keeps its own, or with k_s=0 has none
    config.data.num_unlabeled = 0  # how many of the remaining images the clients share without labels, by class
    # frequency (but see federation.mismatch), the others not being used; 0: all
    config.data.num_validation = 0  # training images held out, by class frequency, before all others are dealt; drawn
    # with the seed of the partition, and not used unless eval_split='validation'
    config.data.eval_split = 'test'  # what is scored: the 'test' images | 'validation': the held-out ones, to choose
    # settings by; then no test image is read
    config.data.tasks = ()  # dense tasks, for methods that train them: of 'semseg', 'parts', 'saliency', 'edges',
    # 'depth', 'stuff', 'keypoints', those that the data set has; client n works on task n mod their number
    config.data.task_images = 'shared'  # 'shared': the clients of each task divide all images that have a truth for it
    # | 'disjoint': all clients divide the images
    config.data.residency = 'device'  # 'host': client images stay in host memory, for sets too large for the device
    config.data.fake = False  # synthetic images of the real shapes; marks every output as fake
    config.data.fake_size = 0  # number of synthetic training images; 0: as many as in the real data set
    config.data.partition_seed = -1  # seed of the labeled set and the split of the data; -1: that of the run, so that
    # each of several `seeds` has its own split; 0 or more: one split for all of them
    config.data.partition_file = ''  # use the split in this partition.npz instead of drawing one
    config.data.cache_dir = ''  # decoded arrays, '' means ~/.cache/semisfl_jax
    config.data.image_size = 0  # resize to this side, at most 4096 (image100 and unequal images), 0: keep; sets with
    # dense tasks: 48 pixels in scenes, 512 in pascal_context, 256 in coco, 128 in oxford_iiit_pet
    config.data.pad_to = 0  # pad with zeros to this side, after resizing, the image in the center: 32 makes 28x28
    # images fit the 4x4 pooling of resnet9; 0: no padding
    config.data.class_list = ''  # image100: a text file with one WordNet id per line
    config.data.image_folder = ''  # data.name='folder': images of your own, train/CLASS/* and test/CLASS/*, resized to
    # data.image_size; image100: an ImageNet folder with train/ and val/, '' means TFDS imagenet2012;
    # cinic10: its folder with train/ and test/, '' means cinic10/ in the TFDS data directory; pascal_context: the
    # folder of PASCAL_MT.tgz, with ImageSets/Context/ and JPEGImages/

    # --- federation
    config.federation = ConfigDict()
    config.federation.num_clients = 30  # N
    config.federation.num_active = 10  # N_h, redrawn each round, uniformly and without replacement
    config.federation.partition = 'uniform'  # how clients' images are split: 'uniform': equally many of each class |
    # 'dirichlet': one draw over classes for each client | 'dirichlet_class': one draw over clients for each class, as
    # in the code of SemiFL and of FedDure | 'classes': some classes for each client
    config.federation.alpha = 0.1  # Dirichlet concentration: small is skewed
    config.federation.min_images = 10  # dirichlet_class: drawn again until every client has at least so many unlabeled
    config.federation.max_images = 0  # images, and at most so many; 0: no bound
    config.federation.classes_per_client = 2  # classes: random ones, each at equally many clients in equal parts
    config.federation.client_map = 'auto'  # 'vmap': all clients at once | 'loop' | 'auto': loop on a CPU, vmap
    # elsewhere
    config.federation.client_chunk = 0  # clients computed at a time, to bound memory; 0: all active ones
    config.federation.labeled_partition = 'same'  # how clients' labeled images (data.client_labels) are split:
    # 'same': like the unlabeled ones, a client may get none | a rule of federation.partition, with a draw of its own;
    # 'uniform' as in the authors' code. With client_labels=-1 and k_s=0 a rule deals `num_labeled` of the images
    config.federation.labeled_alpha = 0.0  # their concentration, with a rule of their own; 0: federation.alpha
    config.federation.min_labeled = 10  # with labeled_partition='dirichlet_class', the least that every client gets
    config.federation.mismatch = -1.0  # share of a client's unlabeled images from classes it has no label of, 0 to 1;
    # federation.partition then decides how many images a client gets, but not their classes; -1: off
    config.federation.mu = 7  # unlabeled images per labeled one in a client batch, when clients have labels;
    # 0: their labels are ignored
    config.federation.ignored_labeled = 'dropped'  # with mu=0, the clients' labeled images: 'dropped': not used, as in
    # the authors' code | 'unlabeled': split along with the unlabeled ones

    # --- model
    config.model = ConfigDict()
    config.model.name = 'alexnet'  # 'small_cnn' | 'cnn' | 'alexnet' | 'vgg13' | 'vgg16' | 'resnet9' (FedDure's) |
    # 'resnet9_plain' (FedMatch's, without BatchNorm and biases) | 'wresnet28x2' (SemiFL's) | 'mlp5000', 'cnn13'
    # (Fed-SHVR's) | 'mlp200', for CPUs | 'mcmahan_cnn', 'mcmahan_2nn' (FedAvg's)
    config.model.split_index = config_dict.placeholder(int)  # layers at the client, a residual block counting as one;
    # None: the paper's cut, after the convolutions
    config.model.output_stride = 8  # dense tasks: of the encoder's last map: 8, 16 or 32 (dilation in place of stride)
    config.model.weights = ''  # dense tasks: a file with which encoders start: a PyTorch state dict of torchvision's
    # ResNet, or this package's own names (.npz, .safetensors, .pth)
    config.model.projection = 'mlp'  # 'mlp' | 'linear' | 'none'
    config.model.projection_dim = 128
    config.model.convolution = 'auto'  # 'direct' | 'winograd' (direct, with less arithmetic in wide 3 x 3 convolutions)
    # | 'native' | 'patches' | 'auto': winograd on a CPU, native elsewhere
    config.model.batch_norm_variance = 'biased'  # estimator for BatchNorm's running variance: 'biased', as in Flax:
    # squares divided by n, the number of rows times pixels | 'unbiased', as in PyTorch: by n - 1
    config.model.recompute = False  # True: keep only the outputs of convolutions and products for a backward pass, and
    # compute again what is between them (BatchNorm, ReLU, pooling): half the memory of models with BatchNorm

    # --- a round
    config.k_s = 100  # supervised iterations in the first round; 0: the server has no images of its own, which is
    # possible in fedavg, fedprox, fedmatch, feddure, fed_shvr, fed_sh and fed_svr, and always so in splitfed, m_fed,
    # mfed_fl and mfed_local
    config.k_u = 50  # cross-entity iterations, or iterations of a client's local training
    config.k_s_rule = 'auto'  # how K_s adapts: 'paper' | 'code' | 'fixed' | 'auto': paper in semisfl, fixed elsewhere
    config.batch_size = 64  # B, images per client and iteration
    config.server_batch_size = 64  # B_s
    config.pre_rounds = 0  # number of initial rounds without a cross-entity phase
    config.sampling = 'epochs'  # the order of images in batches, at server and clients: 'epochs': every image once
    # per pass, in a new random order | 'replicated', as in the authors' loaders: a list too short for the batches of a
    # (first) round is repeated until it is long enough, then shuffled, so that a batch may contain an image twice; an
    # incomplete last batch is dropped

    # --- optimization: fresh momentum each round, lr falls to lr_min over lr_rounds
    config.optimizer = 'sgd'  # 'sgd' | 'adam', with momentum as beta_1 and nesterov=False
    config.lr = 0.02
    config.lr_min = 0.005
    config.lr_rounds = 1000  # later rounds stay at lr_min; 0 means `rounds`
    config.lr_schedule = 'cosine'  # how it falls: 'cosine' | 'poly': as (1 - round / lr_rounds)^0.9
    config.momentum = 0.9
    config.nesterov = True
    config.weight_decay = 5e-4

    # --- losses
    config.threshold = 0.95  # tau: minimum confidence for a pseudo-label to count; 0: all count
    config.pseudo_labels = 'method'  # an upper and a lower line for a method: 'true': the true labels in place of its
    # pseudo-labels, and all count (an oracle) | 'none': no pseudo-label counts; all else as in the method,
    # but K_s stays as it begins: there is no unlabeled loss to adapt to
    config.temperature = 0.2  # kappa of the contrastive terms
    config.consistency_weight = 1.0  # weight of H in the cross-entity phase, or of the unlabeled loss in local training
    config.clustering_weight = 1.0  # weight of the clustering regularization C in the cross-entity phase (Eq. 6)
    config.contrastive_weight = 1.0  # weight of the supervised-contrastive loss T in the supervised phase (Eq. 4)
    config.supervised_references = 'teacher_keys'  # 'teacher_keys' | 'student_supcon': exactly Eq. 3

    # --- local training at the clients: all methods but semisfl, fedswitch_sl and supervised_only
    config.local = ConfigDict()
    config.local.objective = 'fixmatch'  # fedavg, fedprox: 'supervised': labeled images only | 'fixmatch' | 'uda' |
    # 'pseudo_label': labels once a round, by the received model | 'mean_teacher'; both without strong views
    config.local.epochs = 0  # passes of a client over its images (semifl: confident ones) in a round; 0: k_u iterations
    config.local.steps = 'auto'  # iterations of these passes (not in semifl, splitfed, m_fed, mfed_fl, mfed_local):
    # 'unlabeled': over the unlabeled images, rounded up | 'longest': over the unlabeled or the labeled ones, whichever
    # takes longer, rounded down | 'auto': as in the method's paper: longest in fed_shvr, fed_sh and fed_svr, unlabeled
    # elsewhere
    config.local.weighting = 'auto'  # of the average over clients: 'samples': by the number of images that each trains
    # on | 'uniform' | 'auto': as in the method's paper: samples in fedavg, fedprox, feddure, splitfed and those of
    # Fed-SHVR and M-Fed, uniform elsewhere
    config.local.optimizer_state = 'auto'  # fedavg, fedprox, fedmatch, fedswitch, semifl, mfed_local: 'kept': a client
    # continues with the optimizer state of its last round, and so does the server of semifl | 'fresh' | 'auto': 'kept'
    # in semifl and mfed_local, 'fresh' elsewhere
    config.local.prox = 0.01  # mu of fedprox
    config.local.teacher_decay = 0.99  # of the teacher of a client with objective 'mean_teacher'
    config.local.input_noise = 0.0  # mean_teacher: standard deviation of Gaussian noise on normalized images, drawn for
    # teacher and student each; 0.15 in its authors' code. Without views and dropout it is all that the two differ in
    config.local.ramp_rounds = 0  # pseudo_label, mean_teacher: rounds in which the weight of the unlabeled loss rises,
    # linearly from 0, or as exp(-5 (1 - round / ramp_rounds)^2); 0: no ramp
    config.uda = ConfigDict()
    config.uda.temperature = 1.0  # of the labels: below 1 sharpens them
    config.uda.tsa = 'off'  # training signal annealing of the clients' labels: 'off' | 'linear' | 'exp' | 'log', over
    # `lr_rounds` rounds as the learning rate

    # --- options of individual methods, such as config.fedmatch.helpers; docs/options.md explains them
    for group, options in option_groups().items():
        config[group] = ConfigDict({field.name: field.default for field in dataclasses.fields(options)})

    # --- memory queue
    config.queue = 'two_level'  # 'two_level' | 'single_ring': the authors' code | 'off'
    config.queue_size = 1024  # slots per level
    config.queue_stride = 10  # two_level: iterations after which unlabeled keys also enter the supervised level
    config.queue_empty_slots = 'auto'  # 'ignore' | 'count': zeros in the denominator | 'auto': count in single_ring

    # --- teacher
    config.ema_decay = 0.99  # gamma
    config.ema_warmup = True  # a_t = min(1 - 1 / (t + 1), gamma)
    config.client_teacher_ema = False  # Eq. 8: clients also update their copy of the teacher bottom
    config.client_teacher_bn = 'eval'  # 'train': the teacher bottom at the clients uses batch statistics, and dropout
    # if the model has any in it (cnn13)
    config.server_teacher_bn = 'eval'  # 'train_first_round': so does the one at the server in the first round, and
    # updates its running statistics, as in the authors' code until it first tests the teacher in evaluation mode

    # --- adaptation of K_s
    config.frequency = ConfigDict()
    config.frequency.alpha = 1.5  # divisor
    config.frequency.beta = 8.0  # K_min = beta * labeled share * K_u
    config.frequency.period = 10  # rounds averaged into one observation
    config.frequency.horizon = 100  # rounds whose observations are compared at a check
    config.frequency.check_every = 100  # rounds between checks; 1: exactly the paper's Algorithm 1

    # --- costs: bytes and simulated seconds, which do not affect the training
    config.cost = ConfigDict()
    config.cost.enabled = True  # bytes_up, bytes_down and simulated_seconds in the metrics
    config.cost.bill_model_size = 'actual'  # of whole models | 'paper': alexnet 127 MiB, vgg13 508, vgg16 528
    config.cost.bandwidth_unit = 'Mbps'  # 'Mbps', as in the paper | 'MBps', which matches its times
    config.cost.client_out = (0.8, 8.0)  # lowest and highest upload bandwidth, drawn for each client and round
    config.cost.client_in = (10.0, 20.0)  # the same for download
    config.cost.devices = ('jetson_tx2', 'jetson_xavier_nx', 'jetson_agx_xavier')  # or 'jetson_nano'; in equal numbers
    config.cost.efficiency = 0.3  # share of a device's float32 peak that training reaches, also at the server
    config.cost.server_teraflops = 38.7  # float32 peak of the server: one NVIDIA RTX A6000

    # --- clients that fail: they do not contribute to the round's training, but what they had sent is billed
    config.failures = ConfigDict()
    config.failures.before = 0.0  # probability that an active client never starts
    config.failures.inside = 0.0  # probability that it starts and then fails at a random moment of the round
    config.failures.trace = ''  # instead: a CSV file of round (from 1), client (from 0), done (share; 0: never started)
    config.failures.trace_hash = ''  # SHA-256 of its content; filled in by a run, which goes on with no other trace
    config.failures.deadline_seconds = 0.0  # clients whose own round takes longer are dropped; 0: no deadline

    # --- augmentation
    config.augment = ConfigDict()
    config.augment.flip = True  # horizontal, p = 0.5
    config.augment.crop = 0.125  # reflect-pad by this share of the side, then crop at random; 0: no crop
    config.augment.scale_min = 1.0  # then scale about the center by a factor drawn from here to scale_max, 0.25 to 4;
    config.augment.scale_max = 1.0  # both 1: off. Pixels from outside are black, and without truth in maps
    config.augment.rotate = 0.0  # at the same time, turn by up to so many degrees either way, at most 180; 0: off
    config.augment.randaugment = 'mc'  # RandAugment variant: 'mc': FixMatch-pytorch's, used by the authors | 'semifl' |
    # 'fixmatch': google-research's | 'fedmatch'; they differ in operations, ranges and probabilities
    config.augment.operations = 2  # RandAugment n, at most 100, 0: none; 'fedmatch' always has 6, unless this is 0
    config.augment.magnitude = 10  # RandAugment m: v is drawn from 1 .. m - 1; only 'mc' and 'fixmatch'
    config.augment.cutout = 16  # nominal pixels, 0: none; only 'mc' and 'fixmatch'; the others do not end with cutout
    config.augment.supervised = 'strong'  # 'strong' | 'weak': both views of the supervised phase

    if settings == 'code':
        config.data.partition_seed = 2020
        config.federation.labeled_partition = 'uniform'
        config.queue = 'single_ring'
        config.k_s_rule = 'code'
        config.client_teacher_bn = 'train'
        config.server_teacher_bn = 'train_first_round'
        config.sampling = 'replicated'
        config.model.batch_norm_variance = 'unbiased'
    elif settings != 'paper':
        hint = use_one_of(settings, ('paper', 'code'))
        raise UserError(f"unknown settings '{settings}' after the colon of --config; {hint}")
    return config
