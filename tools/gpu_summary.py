#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The summary of tools/gpu_check.sh as Markdown, on standard output.

    tools/gpu_summary.py RESULTS HASH CUT

RESULTS/PROFILE/JOB.status holds "exit-status seconds", JOB.log what the job printed, JOB.json what
GoogleTest counted. HASH is that of cuda/ and lib/; CUT is 1 if jobs are missing. Ends with 1 if
anything failed.
"""
import collections
import datetime
import glob
import json
import os
import re
import subprocess
import sys


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def gtest_counts(path, failed, skipped):
    """Passed tests of a GoogleTest report; the others go to the lists."""
    passed = 0
    with open(path, encoding="utf-8") as report:
        suites = json.load(report)["testsuites"]
    for suite in suites:
        for test in suite["testsuite"]:
            name = suite["name"] + "." + test["name"]
            if test.get("failures"):
                failed.append((name, test["failures"][0]["failure"].strip().replace("\n", " ")))
            elif test.get("result") == "SKIPPED":
                skipped.append(name)
            elif test.get("result") == "COMPLETED":
                passed += 1
    return passed


def skip_reason(log):
    """Why tests of a job were skipped, as the log says it."""
    for pattern in (r"skipped as a whole: (.*)", r": Skipped\n(.*)", r"Device not supported.*"):
        found = re.search(pattern, log)
        if found:
            # The file goes into the repository: it names no folder of the machine that ran.
            return found.group(found.lastindex or 0).strip().replace(os.path.expanduser("~"), "~")
    return ""


def read_job(base):
    """(passed, failed list, skipped list, seconds, reason) of one job."""
    with open(base + ".status", encoding="utf-8") as f:
        status, seconds = map(int, f.read().split())
    log = ""
    if os.path.exists(base + ".log"):
        with open(base + ".log", encoding="utf-8", errors="replace") as f:
            log = f.read()
    failed, skipped, passed = [], [], 0
    name = os.path.basename(base)
    if os.path.exists(base + ".json"):
        passed = gtest_counts(base + ".json", failed, skipped)
        if "skipped as a whole: " in log:  # GoogleTest counts these tests as passed
            skipped += [name] * passed
            passed = 0
    elif status == 77:
        skipped.append(name)
    else:
        counts = re.findall(r"(\d+) passed, (\d+) failed", log)
        if counts:
            passed = int(counts[-1][0])
            if int(counts[-1][1]):
                failed.append((name, counts[-1][1] + " comparisons"))
        elif status == 0:
            passed = 1
    if "memcheck" in name and "Device not supported" in log:
        passed, failed, skipped, status = 0, [], [name], 0
    if status not in (0, 77) and not failed:
        last = [line for line in log.strip().splitlines() if line.strip()][-1:] or [""]
        what = "ran past its time" if status in (124, 137) else "ended with %d" % status
        failed.append((name, ": ".join(filter(None, (what, last[0])))))
    return passed, failed, skipped, seconds, skip_reason(log) if skipped else ""


def collect(results):
    rows = collections.OrderedDict()
    failures, reasons = [], collections.Counter()
    for path in sorted(glob.glob(os.path.join(results, "*", "*.status"))):
        base = path[: -len(".status")]
        profile = os.path.basename(os.path.dirname(path))
        suite = re.sub(r"\.\d+of\d+$", "", os.path.basename(base))
        passed, failed, skipped, seconds, why = read_job(base)
        row = rows.setdefault((profile, suite), [0, 0, 0, 0])
        for i, n in enumerate((passed, len(failed), len(skipped), seconds)):
            row[i] += n
        failures += [(profile, suite) + f for f in failed]
        if skipped:
            reasons[why or "no reason given"] += len(skipped)
    return rows, failures, reasons


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    results, tree, cut = sys.argv[1:]
    rows, failures, reasons = collect(results)
    card = said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    toolkit = re.search(r"V([\d.]+)", said("nvcc", "--version"))
    print("# The last run on a GPU\n")
    print("By `tools/gpu_check.sh`; the figures are counts of tests or, of check programs, of comparisons.")
    print("A profile is the card that the device is taken for (8.0 and 8.9 on their own code, assembled for")
    print("the GPU at hand; 12.0 on code of 9.0).\n")
    print("Sources of `cuda/` and `lib/`: `%s`." % tree)
    cards = collections.Counter(card.splitlines())
    print("Cards: %s." % ("; ".join("%d x %s" % (n, c) for c, n in cards.items()) or "none"))
    print("CUDA compiler: %s." % (toolkit.group(1) if toolkit else "none"))
    print("Date: %s." % datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    if cut == "1":
        print("\nThis run is not complete.")
    print("\n| profile | suite | passed | failed | skipped | seconds |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for profile in sorted({p for p, _ in rows}, key=float):
        mine = {s: r for (p, s), r in rows.items() if p == profile}
        for suite, row in mine.items():
            print("| %s | %s | %d | %d | %d | %d |" % (profile, suite, *row))
        total = [sum(column) for column in zip(*mine.values())]
        print("| **%s** | **all** | %d | %d | %d | %d |" % (profile, *total))
    if reasons:
        print("\n## Why tests were skipped\n")
        for why, n in reasons.most_common():
            print("- %d: %s" % (n, why))
    print("\n## What failed\n")
    for profile, suite, name, why in failures:
        print("- %s %s `%s`: %s" % (profile, suite, name, why[:300]))
    if not failures:
        print("Nothing.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
