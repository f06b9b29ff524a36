#!/usr/bin/env python3
"""Tests of counters.py and shm.py, as TAP."""
import os
import sys
import tempfile

import counters
import shm

ME = os.geteuid()


def touch(folder, *names):
    for name in names:
        with open(os.path.join(folder, name), "w", encoding="utf-8"):
            pass


def after(old, new, folders=()):
    """What Watch says when `new` files have come to `old` ones."""
    with tempfile.TemporaryDirectory() as folder:
        touch(folder, *old)
        for name in folders:
            os.mkdir(os.path.join(folder, name))
        watch = shm.Watch(folder)
        touch(folder, *new)
        return watch.left_over()


def one_board_may_stay():
    assert after([], ["flue.%d" % ME]) == []


def a_second_board_of_other_days_does_not_count():
    assert after(["flue.%d.1" % ME], ["flue.%d" % ME]) == []
    assert after(["flue.%d" % ME, "flue.%d.1" % ME, "flue.%d.2" % ME], []) == []


def a_second_board_that_is_new_does():
    assert after([], ["flue.%d" % ME, "flue.%d.1" % ME]) == ["flue.%d.1" % ME]
    assert after(["flue.%d" % ME], ["flue.%d.1" % ME]) == ["flue.%d.1" % ME]


def anything_else_that_is_new_does():
    assert after([], ["flue-arena"]) == ["flue-arena"]
    assert after([], ["something"]) == []


def the_next_name_is_the_board_when_the_first_is_taken():
    taken = ["flue.%d" % ME]
    assert after([], ["flue.%d.1" % ME], taken) == []
    assert after([], ["flue.%d.1" % ME, "flue.%d.2" % ME], taken) == ["flue.%d.2" % ME]


def a_private_one_is_empty_and_hides_nothing_of_others():
    name = os.path.join(shm.FOLDER, "flue-test.%d" % os.getpid())
    touch("/", name)
    try:
        child = os.fork()
        if child == 0:
            # 77: not allowed here
            os._exit(77 if not shm.make_private() else os.path.exists(name))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert os.path.exists(name)
    finally:
        os.remove(name)
    if status == 77:
        return "only root can have a /dev/shm of its own"
    assert status == 0, status
    return None


def counters_of(*texts):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write("".join(texts))
        file.flush()
        return counters.sums(file.name)


LINE = '{"schema":"flue.stats/1","pid":7,"program":"x","lanes":2,"connections":3}\n'


def counters_are_summed_but_not_process_ids():
    assert counters_of(LINE, LINE) == {"lanes": 4, "connections": 6}
    assert counters_of() == {}
    assert counters.sums("/nowhere/stats") == {}


def line_of_one_who_was_killed_spoils_no_other():
    for cut in range(1, len(LINE) - 1):
        assert counters_of(LINE, LINE[:cut], LINE)["lanes"] == 4, cut
        assert counters_of(LINE, LINE[:cut])["lanes"] == 2, cut


TESTS = [counters_are_summed_but_not_process_ids, line_of_one_who_was_killed_spoils_no_other,
         one_board_may_stay, a_second_board_of_other_days_does_not_count,
         a_second_board_that_is_new_does, anything_else_that_is_new_does,
         the_next_name_is_the_board_when_the_first_is_taken,
         a_private_one_is_empty_and_hides_nothing_of_others]


def main():
    print("1..%d" % len(TESTS))
    failed = 0
    for number, test in enumerate(TESTS, 1):
        try:
            skipped = test()
            print("ok %d - %s%s" % (number, test.__name__, " # SKIP " + skipped if skipped else ""))
        except AssertionError as error:
            failed = 1
            print("not ok %d - %s\n# %r" % (number, test.__name__, error))
    return failed


if __name__ == "__main__":
    sys.exit(main())
