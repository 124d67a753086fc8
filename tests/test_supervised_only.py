"""The lower bound: labels at the server, no clients."""

from tests.rows import STUDENT, TEACHER, Row

ROW = Row(f'{STUDENT} {TEACHER}', '', unlabeled=False, family='resnet9')
