"""The preload library of another revision, built with this tree's options and kept in build/compare."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

from kit import TOP, Failed

HOME = os.path.join(TOP, "build", "compare")
LIBRARY = "libflue-sockets.so"
KEEP = 8  # libraries
DAY = 24 * 3600
# safe.directory: root may look at a tree that belongs to somebody else.
GIT = ["git", "-c", "safe.directory=*", "-C", TOP]


def git(*words):
    try:
        done = subprocess.run(GIT + list(words), capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed("git: %s" % error) from error
    if done.returncode != 0:
        raise Failed("git: " + (done.stderr.decode(errors="replace").strip() or words[0] + " failed"))
    return done.stdout


def resolve(revision):
    """The commit that it names."""
    try:
        return git("rev-parse", "--verify", "--end-of-options", revision + "^{commit}").decode().strip()
    except Failed as error:
        raise Failed("no revision '%s' here (%s)" % (revision, error)) from error


def describe():
    """This tree: its commit, and whether it has changes that are in none."""
    return {"commit": resolve("HEAD"), "changed": bool(git("status", "--porcelain", "-uno").strip())}


def make(kind, targets, source=None):
    """scripts/build of this tree, on this tree or another one."""
    env = dict(os.environ, FLUE_TARGETS=" ".join(targets))
    env.pop("FLUE_SOURCE", None)
    if source:
        env["FLUE_SOURCE"] = source
    # Standard output is for results.
    done = subprocess.run([os.path.join(TOP, "scripts", "build"), kind], env=env, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise Failed("the build failed, see above")
    return os.path.join(source or TOP, "build", kind)


def library(commit, kind, again=False):
    """The path of a commit's library. Its source is unpacked, built and removed; only the library stays."""
    kept = os.path.join(HOME, "%s-%s" % (commit[:12], kind))
    path = os.path.join(kept, LIBRARY)
    if os.path.exists(path) and not again:
        return path
    os.makedirs(HOME, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="source-", dir=HOME) as source:
        unpack = subprocess.run(["tar", "-x", "-C", source], input=git("archive", commit), check=False)
        if unpack.returncode != 0:
            raise Failed("tar failed, see above")
        built = make(kind, ["src/" + LIBRARY], source)
        os.makedirs(kept, exist_ok=True)
        os.utime(kept)
        # A run that has the old one open must not see it change.
        shutil.copyfile(os.path.join(built, "src", LIBRARY), path + ".new")
    os.replace(path + ".new", path)
    tidy()
    return path


def tidy():
    """Keeps the libraries that were made last; what runs that were killed have left goes after a day."""
    def age(path):
        return time.time() - os.stat(path).st_mtime

    paths = [os.path.join(HOME, name) for name in os.listdir(HOME)]
    kept = sorted((path for path in paths if os.path.exists(os.path.join(path, LIBRARY))), key=age)
    for path in kept[KEEP:]:
        shutil.rmtree(path, ignore_errors=True)
    for path in paths:
        if os.path.basename(path).startswith(("run-", "source-")) and age(path) > DAY:
            shutil.rmtree(path, ignore_errors=True)
