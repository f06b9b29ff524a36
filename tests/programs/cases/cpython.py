"""CPython's own tests: the same outcome of every test with the library as without it.

Some are not stable even without it. A test whose outcome differs is run alone, three times each
way, and the difference counts if it is there every time. All differences are printed.
"""
import os
import re
import xml.etree.ElementTree

from cases import scenario
from scene import PYTHON, Failure, Skip, check

NEEDS = ((PYTHON, "python3"),)
HANG = 1800
ALONE = 300
# The VSOCK cases hang where the kernel has no transport for them.
WITHOUT = {"test_socket": ["*VSOCK*", "*Vsock*"]}
# It wants the permission to use the network, though it uses only the loopback device; it gets that
# in a network namespace which has nothing else.
CAGED = ("test_socketserver",)
CAGE = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# Modules that take seconds, and those of which minutes.
QUICK = ("test_socketserver", "test_httplib")
FULL = ("test_selectors", "test_socket", "test_asyncio", "test_ssl", "test_eintr",
        "test_multiprocessing_fork")
TRIES = 3


def outcomes(path):
    """{test: "pass", "fail" or "skip"}"""
    found = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        name = case.get("name")
        outcome = ("fail" if kinds & {"failure", "error"} else
                   "skip" if "skipped" in kinds else "pass")
        # A failed part of a test comes besides the test itself.
        if found.get(name) != "fail":
            found[name] = outcome
    return found


def run_module(scene, module, library, only=(), seconds=HANG):
    """({test: outcome}, the end of the output)"""
    number = len(os.listdir(scene.directory))
    report = scene.path("report-%d.xml" % number)
    work = scene.path("work-%d" % number)
    os.makedirs(work)
    words = [PYTHON, "-m", "test", "-v", "--junit-xml", report, "--tempdir", work,
             "--timeout", str(seconds - 60)]
    if module in CAGED:
        words = CAGE + words + ["-u", "network"]
    for pattern in WITHOUT.get(module, ()):
        words += ["-i", pattern]
    for name in only:
        words += ["-m", name]
    try:
        out = scene.run("client" if library else None, words + [module], good=range(-64, 256),
                        seconds=seconds)
        text = out.decode(errors="replace") + scene.last_error
    except Failure as why:  # it hangs; what was printed is lost, where it hangs is not
        return {}, str(why)
    scene.write("output-%d" % number, text)
    if not os.path.exists(report):
        return {}, text[-6000:]
    return outcomes(report), text


def reason(text, name):
    """What the output says of a test that failed."""
    short = name.rpartition(".")[2]
    match = re.search(r"^(?:ERROR|FAIL): %s.*?(?=^={20}|\Z)" % re.escape(short), text,
                      re.MULTILINE | re.DOTALL)
    return match[0][:2500] if match else ""


def again(scene, module, name):
    """Outcomes of one test alone, (without, with) the library, three times each."""
    both = ([], [])
    for _ in range(TRIES):
        for library in False, True:
            found, _ = run_module(scene, module, library, [name], ALONE)
            both[library].append(found.get(name, "none"))
        if both[0][-1] == both[1][-1]:
            break  # it counts only if it differs every time
    return both


def compare(scene, module):
    native, text = run_module(scene, module, False)
    check(native, "%s without the library gives no report:\n%s", module, text)
    if scene.mode == "native" or not scene.library:
        scene.note("%s: %s", module, tally(native))
        return
    ours, text = run_module(scene, module, True)
    check(ours, "%s with the library gives no report:\n%s", module, text)
    scene.note("%s: without %s; with %s", module, tally(native), tally(ours))
    stays = []
    for name in sorted(set(native) | set(ours)):
        before, after = native.get(name, "none"), ours.get(name, "none")
        if before == after:
            continue
        repeated = again(scene, module, name)
        counts = after != "pass" and len(repeated[1]) == TRIES
        scene.note("%s: %s without, %s with the library; alone %s, %s%s", name, before, after,
                   *("/".join(part) for part in repeated), "" if counts else ": not stable")
        if counts:
            stays.append(name)
        if after == "fail":
            scene.note("%s", reason(text, name))
    check(not stays, "%d tests differ: %s", len(stays), " ".join(stays))


def tally(found):
    return ", ".join("%d %s" % (list(found.values()).count(kind), kind)
                     for kind in ("pass", "fail", "skip"))


def enter(module, quick):
    @scenario("cpython-" + module, *NEEDS, quick=quick, alone=True)
    def play(scene):
        if not os.path.exists("/usr/lib/python3.11/test/%s.py" % module) and not os.path.exists(
                "/usr/lib/python3.11/test/%s" % module):
            raise Skip("install libpython3.11-testsuite")
        if module in CAGED and os.getuid() != 0:
            raise Skip("needs root for a network namespace")
        scene.expect(0, 0)  # few tests talk long enough to be eligible
        compare(scene, module)
    return play


for name_ in QUICK:
    enter(name_, True)
for name_ in FULL:
    enter(name_, False)
