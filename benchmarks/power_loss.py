"""What a power cut leaves of a run: images of a small ext4 disk, taken while runs save on it.

    sudo python -m benchmarks.power_loss [--images=100] [--package=CHECKOUT]

The disk is a file, mounted through a loop device. Now and then a run is held, and the file is copied: that is what a
cut at this moment leaves, as what the kernel has not written yet is not in it. Every copy is mounted, which replays its
journal, and must have a usable checkpoint of the round that was last reported as saved, or of a later one, and the
lines that go with it. Saves are timed in a run before, which is left alone. `--package`: another checkout of the
package, which then trains; this one looks at what it left.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from semisfl_jax.training import checkpoint, metrics

ROOT = Path(__file__).parents[1]
MIB = 96  # of the disk
ROUNDS = 30
RUN = f"""
import sys, time
from semisfl_jax import __main__
from semisfl_jax.training import outputs
save = outputs.RunFolder.save
def reporting(folder, name, number, *arguments):
    start = time.perf_counter()
    save(folder, name, number, *arguments)
    with open(sys.argv[2], 'a') as file:
        file.write(f'{{number}} {{1000 * (time.perf_counter() - start)}}\\n')
outputs.RunFolder.save = reporting
changes = dict(algorithm='supervised_only', rounds={ROUNDS}, checkpoint_every=1, k_s=2, server_batch_size=4)
words = [f'--config.{{key}}={{value}}' for key, value in changes.items()]
sys.exit(__main__.main(['', '--config=digits', f'--workdir={{sys.argv[1]}}', *words]))
"""


@contextmanager
def mounted(image, folder):
    """A file with a file system, at `folder` for the duration of the block."""
    folder.mkdir(exist_ok=True)
    subprocess.run(['mount', '-o', 'loop', image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(['umount', folder], check=True)


def copy(image, to):
    """Copies a file in which nothing changes meanwhile: until two copies are the same."""
    digests = []
    while len(digests) < 2 or digests[-1] != digests[-2]:
        shutil.copyfile(image, to)
        digests.append(hashlib.sha256(to.read_bytes()).digest())


def saves(report):
    """[(round, milliseconds)] of the saves of a run that returned."""
    lines = report.read_text().splitlines() if report.exists() else []
    return [(int(number), float(milliseconds)) for number, milliseconds in map(str.split, lines)]


def lost(folder, reported):
    """What the folder of a run lacks once round `reported` was saved; '' if nothing."""
    saved = [number for number in checkpoint.rounds_saved(folder / 'checkpoints') if number >= reported]
    faults = {number: checkpoint.check(folder / 'checkpoints', number) for number in saved}
    usable = [number for number, fault in faults.items() if not fault]
    if not usable:
        return f'no usable checkpoint of round {reported} or later: {faults or "none at all"}'
    lines = len(metrics.read(folder / 'metrics.jsonl'))
    return f'{lines} lines of {max(usable)}' if lines < max(usable) else ''


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--images', type=int, default=100)
    parser.add_argument('--package', default=str(ROOT))
    options = parser.parse_args()
    bad, taken, number = [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        disk, image = home / 'disk', home / 'image'
        with disk.open('wb') as file:
            file.truncate(MIB * 2**20)
        subprocess.run(['mkfs.ext4', '-q', disk], check=True)

        def start(number):
            folder, report = home / 'live' / f'run{number}', home / f'report{number}'
            command, own = [sys.executable, '-c', RUN, str(folder), str(report)], {'PYTHONPATH': options.package}
            run = subprocess.Popen(command, cwd=home, env=os.environ | own, stdout=subprocess.DEVNULL)
            return run, folder, report

        with mounted(disk, home / 'live'):
            run, folder, report = start(0)
            run.wait()
            milliseconds = [each for _, each in saves(report)]
            while taken < options.images:
                shutil.rmtree(folder)
                number += 1
                run, folder, report = start(number)
                ended = False
                while taken < options.images and not ended:
                    time.sleep(random.uniform(0.02, 0.2))
                    ended = run.poll() is not None
                    run.send_signal(signal.SIGSTOP)
                    if done := saves(report):
                        copy(disk, image)
                        taken += 1
                        with mounted(image, home / 'left') as left:
                            if fault := lost(left / folder.name, done[-1][0]):
                                bad.append(fault)
                                print(f'image {taken}: {fault}', flush=True)
                    run.send_signal(signal.SIGCONT)
                run.kill()
                run.wait()
    print(f'{taken} images, {len(bad)} without what was saved; a save takes {statistics.median(milliseconds):.0f} ms')


if __name__ == '__main__':
    main()
