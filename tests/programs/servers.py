"""Servers that the tests here and the measurements in bench/ both start: where they listen, who they are,
and the words that start them. How they are judged is the callers' business.
"""
import glob
import os
import pwd
import random
import shutil
import socket

HERE = os.path.dirname(os.path.abspath(__file__))
# PostgreSQL refuses to be root and MariaDB would rather not; their packages bring these users. Lanes
# are for ends of one user, so the clients must be the same.
POSTGRES, MYSQL = "postgres", "mysql"

WSGI = """
BODY = b"x" * 1000


def app(_environ, respond):
    respond("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))])
    return [BODY]
"""


def free_port():
    """Below those that the kernel gives to clients."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def listens(port):
    """Whether somebody does, asking the kernel: a connection would disturb the server, and be counted."""
    for path in "/proc/net/tcp", "/proc/net/tcp6":
        try:
            with open(path, encoding="ascii") as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                        return True
        except OSError:
            pass
    return False


def find(program):
    """Its path or None; servers are not on every user's."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def parents():
    """{process: parent}"""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                found[int(name)] = int(fields[1])
    return found


def descendants(root):
    tree, found, level = parents(), [], [root]
    while level:
        level = [pid for pid, parent in tree.items() if parent in level]
        found += level
    return found


def environment(**more):
    """Ours without anything of Flue's."""
    env = {name: value for name, value in os.environ.items()
           if name != "LD_PRELOAD" and not name.startswith("FLUE_")}
    return dict(env, LC_ALL="C.UTF-8", **more)


def known(user):
    """Whether a server can be this user; who is not root starts it as what he is."""
    return os.getuid() != 0 or any(entry.pw_name == user for entry in pwd.getpwall())


def as_user(user):
    """What subprocess needs to start a program as somebody else; nothing if we are not root."""
    if not user or os.getuid() != 0:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def give(user, *paths):
    """Files and directories to a user; nothing if we are not root."""
    if os.getuid() == 0:
        entry = pwd.getpwnam(user)
        for path in paths:
            os.chown(path, entry.pw_uid, entry.pw_gid)


# ---- PostgreSQL ----

def postgres_tool(name):
    """Its path or None: Debian has a directory for each version."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/" + name))
    return found[-1] if found else None


def postgres_init(data):
    return [postgres_tool("initdb"), "-D", data, "-A", "trust", "--no-sync", "-U", POSTGRES,
            "-E", "UTF8", "--locale=C"]


def postgres_serve(data, port, directory, *settings):
    """`directory`: of its Unix-domain socket, or "" for none. To be stopped by SIGINT."""
    words = [postgres_tool("postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory]
    for setting in ("fsync=off", *settings):
        words += ["-c", setting]
    return words


# ---- MariaDB ----

def mariadb_init(data):
    return ["mariadb-install-db", "--no-defaults", "--datadir=" + data, "--skip-test-db",
            "--auth-root-authentication-method=normal"]


def mariadb_serve(data, port, path):
    """`path`: of its Unix-domain socket."""
    return [find("mariadbd"), "--no-defaults", "--datadir=" + data, "--socket=" + path,
            "--pid-file=" + path + ".pid", "--bind-address=127.0.0.1", "--port=%d" % port, "--skip-log-bin",
            "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"]


# ---- gunicorn, Erlang ----

def gunicorn_serve(port, *kind):
    """In a directory where WSGI is in app.py."""
    return ["gunicorn", "-b", "127.0.0.1:%d" % port, "--log-level", "warning", "--keep-alive", "30",
            *kind, "app:app"]


def erlang_echo(*words):
    """server PORT; client PORT CONNECTIONS SECONDS, which prints round trips per second; or check PORT CONNECTIONS
    OCTETS, which prints how many connections were right."""
    return ["escript", os.path.join(HERE, "echo.erl"), *map(str, words)]
