"""A disk that forgets what was not synced, as one whose power is cut."""

import os
from pathlib import Path


class Disk:
    """What of the folder `root` would outlast a power cut: contents of files, and names in folders, that were synced
    since. A removal counts at once. Nothing is taken for synced that another library than Python syncs. Calls `cut`
    after every sync."""

    def __init__(self, root, monkeypatch, cut):
        self._root, self._contents, self._names = root, {}, {}
        self._record(root)
        fsync = os.fsync

        def recording(descriptor):
            fsync(descriptor)
            number = os.fstat(descriptor).st_ino
            for path in (root, *root.rglob('*')):
                if path.lstat().st_ino == number:
                    self._record(path)
                    cut()

        monkeypatch.setattr(os, 'fsync', recording)

    def _record(self, path):
        if path.is_dir():
            self._names[path.stat().st_ino] = {each.name: each.lstat().st_ino for each in path.iterdir()}
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def left(self, folder, number=None, place=None):
        """Writes to `folder` what a power cut now would leave."""
        number, place = number or self._root.stat().st_ino, place or self._root
        folder.mkdir()
        for name, inner in self._names.get(number, {}).items():
            if not os.path.lexists(place / name):
                continue
            if (place / name).is_dir():
                self.left(folder / name, inner, place / name)
            else:
                Path(folder / name).write_bytes(self._contents.get(inner, b''))
        return folder
