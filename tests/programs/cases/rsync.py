"""rsync over ssh: an sshd of our own on a local port, with keys of its own.

sshd runs itself again for every connection and then has it as descriptors 0 and 1, which stay on
TCP. Started with -r it does not, and the connection can have a lane once the part of sshd that
speaks before the login, another user's and in a cage, is gone.
"""
import filecmp
import getpass
import os
import subprocess

from cases import find, scenario
from scene import PYTHON, check, noise

NEEDS = (("rsync", "rsync"), ("sshd", "openssh-server"), ("ssh", "openssh-client"))

SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {dir}/host
PidFile none
AuthorizedKeysFile {dir}/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
LogLevel VERBOSE
MaxStartups 100
"""

SSH = """
Host *
    Port {port}
    IdentityFile {dir}/user
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    BatchMode yes
    LogLevel ERROR
    Compression no
"""


def start(scene, *options):
    for name in "host", "user":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", scene.path(name)],
                       check=True)
    os.makedirs("/run/sshd", exist_ok=True)  # where sshd locks its unprivileged part in
    port = scene.port()
    config = scene.write("sshd_config", SSHD.format(port=port, dir=scene.directory))
    scene.write("ssh_config", SSH.format(port=port, dir=scene.directory))
    server = scene.start("server", [find("sshd"), "-D", "-e", "-f", config, *options], port)
    return port, server


def ssh(scene):
    return ["ssh", "-F", scene.path("ssh_config"), "%s@127.0.0.1" % getpass.getuser()]


def make_tree(scene, name):
    files = scene.size(300, 5_000)
    for i in range(files):
        scene.write("%s/d%d/f%d" % (name, i % 17, i), noise(i * 97 % 9000, i))
    for i in range(3):
        scene.write("%s/big%d" % (name, i), noise(scene.size(3_000_000, 100_000_000), i))
    os.symlink("big0", scene.path(name, "link"))


def total(scene, name):
    return sum(os.lstat(os.path.join(folder, file)).st_size
               for folder, _, files in os.walk(scene.path(name)) for file in files)


def same_tree(one, other):
    """Whether names and contents agree."""
    compared = filecmp.dircmp(one, other)
    if compared.left_only or compared.right_only or compared.funny_files:
        return False
    _, differ, odd = filecmp.cmpfiles(one, other, compared.common_files, shallow=False)
    return not differ and not odd and all(
        same_tree(os.path.join(one, name), os.path.join(other, name))
        for name in compared.common_dirs)


def rsync(scene, *words):
    remote = " ".join(ssh(scene)[:-1])
    return scene.run("client", ["rsync", "-a", "--delete", "-e", remote, *words])


def there_and_back(scene, *options):
    """A tree goes there, changes, goes again, and comes back. Returns its size."""
    _, server = start(scene, *options)
    make_tree(scene, "here")
    place = "%s@127.0.0.1:%s/" % (getpass.getuser(), scene.path("there"))
    rsync(scene, scene.path("here") + "/", place)
    check(same_tree(scene.path("here"), scene.path("there")), "the tree differs there")
    octets = total(scene, "here")
    with open(scene.path("here/big1"), "r+b") as file:
        file.seek(100_000)
        file.write(noise(500_000, 77))
    os.remove(scene.path("here/d3/f3"))
    # Contents are compared: the change may be within the same second.
    rsync(scene, "--checksum", scene.path("here") + "/", place)
    check(same_tree(scene.path("here"), scene.path("there")), "the tree differs after a change")
    rsync(scene, place, scene.path("back"))
    check(same_tree(scene.path("here"), scene.path("back")), "the tree differs when it is back")
    stop(server)
    return octets


@scenario("rsync", *NEEDS)
def rsync_again(scene):
    """With the usual sshd, whose connections are not eligible."""
    there_and_back(scene)
    scene.expect(0, 0)


@scenario("rsync-lane", *NEEDS)
def rsync_lane(scene):
    """With an sshd that keeps the connection as it was accepted."""
    octets = there_and_back(scene, "-r")
    scene.expect(2 * 3, 2 * 2 * octets * 8 // 10)


@scenario("ssh-streams", *NEEDS)
def streams(scene):
    """One stream in each direction at once, through a command; and a forwarded port."""
    scene.inner = True  # curl and the tunnel
    _, server = start(scene)
    data = noise(scene.size(5_000_000, 200_000_000))
    back = scene.run("client", ssh(scene) + ["cat"], data=data)
    check(back == data, "what cat returns differs")
    far = scene.port()
    scene.write("files/data", data)
    scene.start(None, [PYTHON, "-m", "http.server", "-b", "127.0.0.1", "-d", scene.path("files"),
                       str(far)], far)
    near = scene.port()
    tunnel = scene.start("client", ssh(scene)[:-1] + ["-N", "-L", "%d:127.0.0.1:%d" % (near, far),
                                                      ssh(scene)[-1]], near)
    got = scene.run("client", ["curl", "-sS", "--fail", "http://127.0.0.1:%d/data" % near])
    check(got == data, "what comes through the tunnel differs")
    tunnel.stop(good=(0, 255))
    stop(server)
    scene.expect(2, len(data))  # between curl and the tunnel


def stop(server):
    server.stop()
    check("fatal" not in server.err() and "signal" not in server.err().replace(
        "Received signal 15", ""), "sshd said:\n%s", server.err()[-2000:])
