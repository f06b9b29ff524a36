"""RabbitMQ: a broker on Erlang's run time; producers and consumers in Python."""
import os
import subprocess

from cases import find, scenario
from scene import PYTHON, Skip, check

NEEDS = (("rabbitmq-server", "rabbitmq-server"), ("epmd", "erlang-base"), (PYTHON, "python3"))
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on the path would become another user
CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "broker.py")

CONFIG = """
listeners.tcp.default = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
"""


def start(scene):
    """All that Erlang would start or keep elsewhere is ours: its name server, its cookie, its ports."""
    port, names = scene.port(), scene.port()
    scene.start(None, [find("epmd"), "-port", str(names), "-address", "127.0.0.1"], names)
    config = scene.write("rabbitmq.conf", CONFIG.format(port=port))
    env = {
        "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "test%d@localhost" % port, "RABBITMQ_DIST_PORT": str(scene.port()),
        "RABBITMQ_MNESIA_BASE": scene.path("mnesia"), "RABBITMQ_LOG_BASE": scene.path("log"),
        "RABBITMQ_PID_FILE": scene.path("pid"), "RABBITMQ_CONFIG_FILE": config,
        "RABBITMQ_ENABLED_PLUGINS_FILE": scene.write("plugins", "[].\n"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    server = scene.start("server", [SERVER], port, env=env)
    scene.until(lambda: b"completed with 0 plugins" in server.out(), "the broker does not start")
    return port, server


@scenario("rabbitmq", *NEEDS, smoke=True)
def rabbitmq(scene):
    """Messages of all sizes, each confirmed to its producer and by its consumer."""
    if not os.path.exists(SERVER):
        raise Skip("no " + SERVER)
    if subprocess.run([PYTHON, "-c", "import pika"], stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip("install python3-pika")
    port, server = start(scene)
    producers, consumers, messages = 4, 3, scene.size(30, 600)
    out = scene.run("client", [PYTHON, CLIENT, str(port), str(producers), str(consumers), str(messages)])
    check(out.decode().strip() == str(producers * messages), "the client said: %s\n%s", out.decode(),
          scene.last_error)
    server.stop()
    bad = [line for line in server.out().decode(errors="replace").splitlines()
           if "[error]" in line or "[critical]" in line or "CRASH" in line]
    check(not bad and not server.complaints(), "the broker said:\n%s", "\n".join(bad[:20]) + server.err())
    # A message has 184 thousand octets on average, and goes through the broker.
    scene.expect(2 * (producers + consumers), int(0.8 * 2 * 2 * producers * messages * 184_000))
