#!/usr/bin/env python3
"""The tests of the interface can fail.

A library with another structure than a program expects, and a program with another structure than the
library expects, are the same thing; so the kept headers are spoiled in a copy, and the program that is
compiled against them must not work. scripts/check-abi must find the same faults, and let pass what is
allowed.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))

# File, text and what takes its place: faults that a program of 0.2 must stumble over.
FAULTS = {
    "completion reordered": ("types.h", "	uint64_t id;\n	uint16_t status;   /* enum flue_wc_status */\n",
                             "	uint16_t status;\n	uint64_t id;\n"),
    "request reordered": ("types.h", "	uint32_t n_sg;\n	uint32_t rkey;\n", "	uint32_t rkey;\n	uint32_t n_sg;\n"),
    "attributes reordered": ("queue.h", "	uint32_t sq_depth, rq_depth;       /*", "	uint32_t rq_depth, sq_depth;       /*"),
    "slots reordered": ("adapter.h", "	bool (*destroy)(struct flue_pd *pd); /* EBUSY: it has children */\n",
                        "	bool (*none)(struct flue_pd *pd);\n	bool (*destroy)(struct flue_pd *pd);\n"),
    "object with a field less": ("queue.h", "	uint32_t number; /* unique in the adapter */\n", "	uint64_t number;\n"),
    "event reordered": ("types.h", "	uint32_t type;   /* enum flue_event_type */\n	uint32_t reason; /*",
                        "	uint32_t reason;\n	uint32_t type; /*"),
    "enumeration renumbered": ("types.h", "	FLUE_WC_WRITE,\n	FLUE_WC_READ,\n", "	FLUE_WC_READ,\n	FLUE_WC_WRITE,\n"),
    "region reordered": ("adapter.h", "	uint32_t lkey, rkey;\n};", "	uint32_t rkey_, lkey, rkey;\n};"),
    "capabilities reordered": ("adapter.h", "	uint64_t max_mr_length, max_message;\n",
                               "	uint64_t max_message;\n"),
}
# Faults that only check-abi can know of, because today nobody looks there.
SILENT = {
    "fixed structure grown": ("types.h", "	uint32_t length;\n	uint32_t lkey;\n};", "	uint32_t length;\n	uint32_t lkey;\n	uint64_t more;\n};"),
    "field in a gap": ("queue.h", "	uint32_t type; /* enum flue_qp_type */\n};", "	uint32_t type;\n	uint32_t more;\n};"),
    "sign changed": ("queue.h", "	uint32_t type; /* enum flue_qp_type */\n};", "	int32_t type;\n};"),
    "type of a list changed": ("queue.h", "	uint32_t sq_depth, rq_depth;       /*", "	int32_t sq_depth, rq_depth;       /*"),
    "pointer to something else": ("queue.h", "	struct flue_srq *srq;", "	struct flue_cq *srq;"),
    "argument changed": ("types.h", "flue_event_name(uint32_t type);", "flue_event_name(uint64_t type);"),
    "slot's argument changed": ("queue.h", "	bool (*wait)(struct flue_cq *cq, int timeout_ms);",
                                "	bool (*wait)(struct flue_cq *cq, long timeout_ms);"),
    "function gone": ("adapter.h", "FLUE_API const char *flue_version(void);\n", ""),
    "macro changed": ("socket.h", "FLUE_SWITCH_EARLY_MAX 65536", "FLUE_SWITCH_EARLY_MAX 4096"),
    "callback changed": ("queue.h", "typedef void (*flue_notify_fn)(struct flue_cq *cq, void *arg);",
                         "typedef void (*flue_notify_fn)(void *arg, struct flue_cq *cq);"),
    "flag moved": ("types.h", "FLUE_FENCE = 1 << 2", "FLUE_FENCE = 1 << 9"),
}
GROWTH = {
    "attributes": ("queue.h", "	uint32_t type; /* enum flue_qp_type */\n};", "	uint32_t type;\n	uint64_t more;\n};"),
    "completion": ("types.h", "	uint16_t cpu; /* processor", "	uint16_t cpu;\n	uint64_t more; /*"),
    "enumeration": ("types.h", "	FLUE_WR_NOPS,\n", "	FLUE_WR_MORE,\n	FLUE_WR_NOPS,\n"),
    "slots": ("queue.h", "	bool (*query)(struct flue_qp *qp, struct flue_qp_values *values, uint32_t mask);\n",
              "	bool (*query)(struct flue_qp *qp, struct flue_qp_values *values, uint32_t mask);\n"
              "	bool (*more)(struct flue_qp *qp);\n"),
}


def spoil(version, work, change):
    """A copy of the kept headers with the change; its path."""
    name, old, new = change
    include = os.path.join(work, "include")
    shutil.copytree(os.path.join(HERE, version, "include"), include)
    path = os.path.join(include, "flue", name)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text.count(old) >= 1, "no longer there: " + old
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new, 1))
    return include


def works(args, version, include, work):
    """Does the program, compiled against these headers, work with the library?"""
    program = os.path.join(work, "program")
    compiled = subprocess.run(args.cc + ["-w", "-I" + include, os.path.join(HERE, version, "program.c"),
                                         args.library, "-lpthread", "-o", program],
                              capture_output=True, text=True)
    if compiled.returncode:
        return None
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(os.path.abspath(args.library)))
    try:
        done = subprocess.run([program], env=environment, capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def passes(version, include):
    return subprocess.run([os.path.join(TOP, "scripts/check-abi"), os.path.join(HERE, version, "include"), include],
                          capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--cc", nargs="+", required=True)
    parser.add_argument("--versions", nargs="+", required=True)
    args = parser.parse_args()
    wrong = 0
    sanitized = b"__asan_" in open(args.library, "rb").read() or b"__tsan_" in open(args.library, "rb").read()

    def say(good, what):
        nonlocal wrong
        print("%s %s" % ("ok" if good else "NOT OK", what))
        wrong += not good

    for version in args.versions:
        kept = os.path.join(HERE, version, "include")
        with tempfile.TemporaryDirectory() as work:
            say(passes(version, kept), "check-abi, nothing changed")
            say(sanitized or works(args, version, kept, work), "program of %s, nothing changed" % version)
        for kind, changes in ("fault", FAULTS), ("silent fault", SILENT), ("growth", GROWTH):
            for what, change in changes.items():
                with tempfile.TemporaryDirectory() as work:
                    include = spoil(version, work, change)
                    say(passes(version, include) == (kind == "growth"), "check-abi, %s: %s" % (kind, what))
                    if kind == "fault" and not sanitized:
                        result = works(args, version, include, work)
                        say(result is False, "program of %s, %s%s" % (
                            version, what, "" if result is not None else " (does not compile)"))
    return 1 if wrong else 0


sys.exit(main())
