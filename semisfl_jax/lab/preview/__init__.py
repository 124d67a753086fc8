"""The programs of a run, compiled for a device that is not there: semisfl preview."""
