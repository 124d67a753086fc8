"""A virtual environment for every peer, made once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.catalog import Peer

READY = 'installed.json'  # in an environment that is complete: the requirements it was made for
LIMIT = 3600  # seconds for one installation
ASK = 'import sys; print("%d.%d" % sys.version_info[:2])'


class Unavailable(Exception):
    """A peer cannot be measured here; the message is the reason, in one line."""


def make(peer: Peer, folder: Path) -> Path:
    """The Python of the environment `folder`/HOME, which is made if it is missing, incomplete or for other versions.

    Raises:
      Unavailable: no suitable Python, or a failed installation.
    """
    if not peer.requirements:
        return Path(sys.executable)
    home = folder / peer.home
    python = home / 'bin' / 'python'
    if not _ready(home, peer):
        interpreter = find_python(peer.pythons)
        print(f'{peer.title}: making {home} …', flush=True)
        _run([interpreter, '-m', 'venv', '--clear', str(home)], f'no environment in {home}')
        (home / READY).unlink(missing_ok=True)
        _run([str(python), '-m', 'pip', 'install', '--quiet', *peer.requirements], 'pip install failed')
        (home / READY).write_text(json.dumps(peer.requirements) + '\n')
    return python


def _ready(home: Path, peer: Peer) -> bool:
    try:
        return json.loads((home / READY).read_text()) == list(peer.requirements)
    except (OSError, ValueError):
        return False


def find_python(versions: tuple[str, ...]) -> str:
    """An interpreter of one of these versions ('3.11', …), the first ones first: this one, on PATH, or of pyenv.

    Raises:
      Unavailable: there is none.
    """
    pyenv = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv'))
    for version in versions:
        candidates = [sys.executable, shutil.which(f'python{version}')]
        candidates += sorted(map(str, pyenv.glob(f'versions/{version}.*/bin/python')), reverse=True)
        for candidate in candidates:
            if candidate and _version(candidate) == version:
                return candidate
    raise Unavailable(f'needs Python {" or ".join(versions)}, which is neither on PATH nor with pyenv')


def _version(python: str) -> str:
    try:
        return subprocess.run(
            [python, '-c', ASK], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # a stand-in that only says what is not installed
        return ''


def versions(python: Path, peer: Peer) -> dict[str, str]:
    """Versions of a peer, of what it computes with, and of Python, as its environment reports them."""
    names = [peer.package, *(('torch',) if any(r.startswith('torch') for r in peer.requirements) else ('jax',))]
    code = (
        'import importlib.metadata as m, json, platform, sys; '
        'print(json.dumps({**{n: m.version(n) for n in sys.argv[1:]}, "python": platform.python_version()}))'
    )
    done = subprocess.run([python, '-c', code, *dict.fromkeys(names)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f'{peer.package} is not in its environment: {_last_line(done.stderr)}')
    return json.loads(done.stdout)


def _run(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f'{failure}: {" ".join(str(error).split())}') from error
    if done.returncode:
        raise Unavailable(f'{failure}: {_last_line(done.stderr or done.stdout)}')


def _last_line(text: str) -> str:
    """The last line that names an error, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if 'error' in line.lower()]
    return (errors or lines or ['nothing was printed'])[-1]
