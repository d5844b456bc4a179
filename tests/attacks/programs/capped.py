"""Executes a command with no more capabilities than are named: the rest leave the bounding set.

python capped.py 0,1,3 COMMAND...
"""

import ctypes
import os
import sys

PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24

kept = {int(number) for number in sys.argv[1].split(",")}
libc = ctypes.CDLL(None, use_errno=True)
for number in range(64):
    if number in kept or libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) != 1:
        continue
    if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")
os.execv(sys.argv[2], sys.argv[2:])
