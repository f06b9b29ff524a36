"""/dev/shm for tests: one of their own where that is allowed, else watched for what is left behind.

Other programs of the same user share /dev/shm with the tests, and may have boards of the library there,
more than one, from other days. No test may depend on them.
"""
import ctypes
import os
import stat

FOLDER = "/dev/shm"
NAMES = 4  # as in board.c
CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def make_private():
    """Give this process and its children a /dev/shm of their own. False: not allowed.

    Only root does so as it is. Others could in a user namespace, but there the programs under test would
    not be what they are.
    """
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return (libc.unshare(CLONE_NEWNS) == 0
            and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
            and libc.mount(b"tmpfs", FOLDER.encode(), b"tmpfs", 0, b"mode=1777") == 0)


class Watch:
    """What has come into the folder since this was made."""

    def __init__(self, folder=FOLDER, uid=None):
        self.folder = folder
        self.uid = os.geteuid() if uid is None else uid
        self.before = self.files()

    def files(self):
        """This user's files of the library."""
        found = set()
        for name in os.listdir(self.folder):
            try:
                if "flue" in name and self.status(name).st_uid == self.uid:
                    found.add(name)
            except FileNotFoundError:
                pass  # somebody else's, gone meanwhile
        return found

    def status(self, name):
        return os.lstat(os.path.join(self.folder, name))

    def usable(self, name):
        """Would the library take this name for its board?"""
        try:
            status = self.status(name)
        except FileNotFoundError:
            return True
        return stat.S_ISREG(status.st_mode) and status.st_uid == self.uid

    def left_over(self):
        """Names that are new, but for the one board that may stay: the first name that is to be had."""
        names = ["flue.%d" % self.uid] + ["flue.%d.%d" % (self.uid, i) for i in range(1, NAMES)]
        board = [name for name in names if self.usable(name)][:1]
        return sorted(self.files() - self.before - set(board))
