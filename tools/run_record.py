#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What ran where: the records docs/isa_run.tsv.gz (instruction sets) and docs/gpu_run.tsv.gz (GPU cards).

    tools/run_record.py summarize RESULTS      one run as a record, on standard output
    tools/run_record.py merge KIND RECORD..    into that of KIND, of which docs/KIND_run.md is made
    tools/run_record.py page KIND              docs/KIND_run.md anew
    tools/run_record.py stale KIND             which suites are newer than their rows

KIND is isa or gpu. A record has lines of fields with tabs between:

    run      id, date, machine, compiler
    files    id, the sources of a program: names, and FOLDER/* for all sources of a folder; where that is
             shorter ^ID and what differs from those of a line above, -NAME and +NAME
    row      on, suite, run, files, hash, passed, failed, skipped, seconds
    failed   on, suite, case, why
    skipped  on, suite, how many, why

`on` is an instruction set or a card, a suite is a program of tests (with the words of a check program), the
hash is that of the files when the program was built (tools/suite_sources.py). A row is replaced by a newer
one of the same suite on the same set or card, and stays until then.

RESULTS/ON/JOB.status holds "exit-status seconds", JOB.log what the job printed, JOB.json what GoogleTest
counted; a job is SUITE or SUITE.2of4. RESULTS/suites.tsv, or RESULTS/ON/suites.tsv, is what
tools/suite_sources.py said, RESULTS/machine.txt a line on the machine.
"""
import collections
import datetime
import glob
import gzip
import hashlib
import json
import os
import re
import sys

from suite_sources import ROOT, hash_of



def set_names():
    """Instruction sets, as the folders of their processors list them (lib/cpu/x86/isa_x86.cc)."""
    names = ["any", "scalar"]
    for path in sorted(glob.glob(os.path.join(ROOT, "lib/cpu/*/isa_*.cc")), reverse=True):
        with open(path, encoding="utf-8") as source:
            names += re.findall(r'\.name = "(\w+)"', source.read())
    return tuple(names)


SETS = set_names()
CARDS = ("8.0", "8.9", "9.0", "12.0", "vulkan", "lavapipe")
OF_VULKAN = CARDS[4:]
KINDS = {
    "isa": ("set", "What ran on which instruction set", "tools/isa_check.sh", SETS),
    "gpu": ("card", "What ran on which GPU card", "tools/gpu_check.sh", CARDS),
}
SOURCES = re.compile(r"(\.(c|cc|cu|cuh|h|cmake)|/CMakeLists\.txt)$")


def sources_in(folder):
    """The sources that lie in a folder of the tree, not in its folders."""
    try:
        names = os.listdir(os.path.join(ROOT, folder))
    except OSError:
        return set()
    paths = {folder + "/" + name for name in names}
    return {p for p in paths if SOURCES.search(p) and os.path.isfile(os.path.join(ROOT, p))}


def pack(files):
    """Names of files, with FOLDER/* where all sources of a folder are among them."""
    files, packed = set(files), []
    for folder in sorted({os.path.dirname(name) for name in files}):
        mine = {name for name in files if os.path.dirname(name) == folder}
        everything = sources_in(folder)
        if everything and everything <= mine:
            packed.append(folder + "/*")
            mine -= everything
        packed += sorted(mine)
    return " ".join(packed)


def differs(names, others):
    """What a set of names has otherwise than another."""
    return ["-" + n for n in sorted(others - names)] + ["+" + n for n in sorted(names - others)]


def resolve(packed, known):
    """The names that a line of files says; `known`: of the lines above."""
    if not packed.startswith("^"):
        return packed
    like, *changes = packed[1:].split(" ")
    names = set(known[like].split())
    names -= {c[1:] for c in changes if c[0] == "-"}
    names |= {c[1:] for c in changes if c[0] == "+"}
    return " ".join(sorted(names))


def file_lines(files):
    """(id, names) of each list, short where one above is alike."""
    above = {}
    for name in sorted(files):
        names = set(files[name].split())
        text = " ".join(sorted(names))
        for other, others in above.items():
            text = min(text, " ".join(["^" + other] + differs(names, others)), key=len)
        above[name] = names
        yield name, text


def unpack(packed):
    files = set()
    for name in packed.split():
        files |= sources_in(name[:-2]) if name.endswith("/*") else {name}
    return files


# One job's results.

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


def without_folders(text):
    """A failure's text with files as the tree has them: the record names no folder of the machine that ran."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:]+/)+?(?=(?:tests|lib|cuda|vulkan|examples|bindings)/)", "", text)


def skip_reason(log):
    """Why tests of a job were skipped, as the log says it."""
    for pattern in (r"skipped as a whole: (.*)", r": Skipped\n(.*)", r"Device not supported.*"):
        found = re.search(pattern, log)
        if found:
            # The file goes into the repository: it names no folder of the machine that ran.
            return found.group(found.lastindex or 0).strip().replace(os.path.expanduser("~"), "~")
    return "no reason given"


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
    failed = [(case, without_folders(text)) for case, text in failed]
    return passed, failed, skipped, seconds, skip_reason(log) if skipped else ""


# A record.

class Record:
    def __init__(self):
        self.runs, self.files, self.rows = {}, {}, {}
        self.notes = collections.defaultdict(list)

    def read(self, path):
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
            for line in f:
                kind, *fields = line.rstrip("\n").split("\t")
                if kind == "run":
                    self.runs[fields[0]] = tuple(fields[1:])
                elif kind == "files":
                    self.files[fields[0]] = resolve(fields[1], self.files)
                elif kind == "row":
                    self.rows[fields[0], fields[1]] = fields[2:5] + [int(n) for n in fields[5:]]
                elif kind in ("failed", "skipped"):
                    self.notes[fields[0], fields[1]].append((kind,) + tuple(fields[2:]))
        return self

    def write(self, path):
        text = self.text().encode()
        if path.endswith(".gz"):
            text = gzip.compress(text, mtime=0)
        with open(path, "wb") as f:
            f.write(text)

    def date(self, key):
        return self.runs[self.rows[key][0]][0]

    def take(self, other):
        """Rows of another record, where they are newer."""
        for key, row in other.rows.items():
            if key in self.rows and self.date(key) > other.date(key):
                continue
            self.runs[row[0]] = other.runs[row[0]]
            self.files[row[1]] = other.files[row[1]]
            self.rows[key] = row
            self.notes[key] = other.notes[key]

    def keys(self):
        """In the order of the page."""
        place = {name: i for i, name in enumerate(SETS + CARDS)}
        return sorted(self.rows, key=lambda k: (place[k[0]], k[1]))

    def lines(self):
        keys = self.keys()
        runs, files = {self.rows[k][0] for k in keys}, {self.rows[k][1] for k in keys}
        for name in sorted(runs):
            yield ("run", name) + self.runs[name]
        for name, text in file_lines({name: self.files[name] for name in files}):
            yield "files", name, text
        for key in keys:
            yield ("row",) + key + tuple(map(str, self.rows[key]))
            for kind, *note in self.notes[key]:
                yield (kind,) + key + tuple(note)

    def text(self):
        return "".join("\t".join(" ".join(f.split()) for f in line) + "\n" for line in self.lines())

    def stale(self):
        """Keys of rows whose sources are not those of the tree."""
        now = {name: hash_of(unpack(packed)) for name, packed in self.files.items()}
        return [key for key in self.keys() if now[self.rows[key][1]] != self.rows[key][2]]


def read_suites(path):
    """({program: (hash, files)}, compiler)"""
    programs, compiler = {}, ""
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.startswith("# compiler "):
                compiler = line[len("# compiler "):].strip()
                continue
            name, _, tree, files = line.rstrip("\n").split("\t")
            programs[name] = tree, files.split()
    return programs, compiler


def program_of(suite):
    """Check programs run with words behind a point, and under a tool whose name is in front."""
    return re.sub(r"^memcheck\.", "", suite).split(".")[0]


def summarize(results):
    record = Record()
    with open(results + "/machine.txt", encoding="utf-8") as f:
        machine = f.read().strip()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    jobs = collections.defaultdict(list)
    for path in sorted(glob.glob(results + "/*/*.status")):
        on, job = os.path.basename(os.path.dirname(path)), os.path.basename(path)[:-len(".status")]
        piece = re.search(r"\.\d+of(\d+)$", job)
        suite, n = (job[:piece.start()], int(piece.group(1))) if piece else (job, 1)
        jobs[on, suite, n].append(path[:-len(".status")])
    for (on, suite, n), pieces in jobs.items():
        if len(pieces) < n or (on, suite) in record.rows:
            continue  # a suite is recorded when all of it has run
        own = "%s/%s/suites.tsv" % (results, on)
        programs, compiler = read_suites(own if os.path.exists(own) else results + "/suites.tsv")
        if program_of(suite) not in programs:
            print("%s is not recorded: its sources are not known" % suite, file=sys.stderr)
            continue
        tree, files = programs[program_of(suite)]
        packed = pack(files)
        run = hashlib.sha256("\t".join((date, machine, compiler)).encode()).hexdigest()[:6]
        record.runs[run] = date, machine, compiler
        names = hashlib.sha256(packed.encode()).hexdigest()[:8]
        record.files[names] = packed
        counts, skips = [0, 0, 0, 0], collections.Counter()
        for base in pieces:
            passed, failed, skipped, seconds, why = read_job(base)
            counts = [a + b for a, b in zip(counts, (passed, len(failed), len(skipped), seconds))]
            record.notes[on, suite] += [("failed", case, text[:300]) for case, text in failed]
            skips.update({why: len(skipped)} if skipped else {})
        record.notes[on, suite] += [("skipped", str(n), why) for why, n in skips.items()]
        record.rows[on, suite] = [run, names, tree] + counts
    return record


# What people read.

def path_of(kind, suffix):
    return os.path.join(ROOT, "docs", "%s_run.%s" % (kind, suffix))


def table_of(kind):
    """The record itself, packed: most of it are names of sources."""
    return path_of(kind, "tsv.gz")


def load(kind):
    path = table_of(kind)
    return Record().read(path) if os.path.exists(path) else Record()


def absent_lines(kind, record):
    """What sets or cards lack that at least two others of their kind have."""
    places = collections.defaultdict(set)
    for on, suite in record.rows:
        places[on in OF_VULKAN, suite].add(on)
    out = []
    for on in dict.fromkeys(k[0] for k in record.keys()):
        lacks = sorted(suite for (vulkan, suite), where in places.items()
                       if vulkan == (on in OF_VULKAN) and len(where) > 1 and on not in where)
        if lacks and on != "any":
            out.append("Not recorded on %s: %s." % (on, ", ".join(lacks)))
    bare = [name for name in KINDS[kind][3] if name not in {on for on, _ in record.rows}]
    return out + (["Nothing is recorded on %s." % ", ".join(bare)] if bare else [])


def page(kind, record):
    on, title, script, _ = KINDS[kind]
    out = ["# " + title, ""]
    for line in absent_lines(kind, record) or ["Every suite is recorded on every %s of this page." % on]:
        out += [line, ""]
    out += ["Made by `tools/run_record.py` of `docs/%s`, which `%s` fills; not edited by hand. A suite is a program" % (os.path.basename(table_of(kind)), script),
            "of tests; *sources* begins the hash of what that program was built from when it ran. A row stays until a newer run of the",
            "same suite replaces it; `tools/run_record.py stale %s` lists the suites whose sources have changed since." % kind]
    if kind == "isa":
        out += ["", "A set is what the program took the processor for (`SHARPI_TEST_ISA`): a run says which set the processor itself has, which",
                "may be a wider one. `any` are suites that no kernel is linked into. Programs that use the shared library run on",
                "the processor's own set alone."]
    else:
        out += ["", "A card is what the device is taken for: 8.0 and 8.9 on their own code, assembled for the GPU at hand; 12.0 on code of 9.0;",
                "`vulkan` is the machine's GPU as the Vulkan tier has it, `lavapipe` Mesa's software device.",
                "Figures are counts of tests or, of check programs, of comparisons."]
    numbers = {run: i + 1 for i, run in enumerate(
        sorted({row[0] for row in record.rows.values()}, key=lambda r: (record.runs[r], r)))}
    out += ["", "| run | date (UTC) | machine | compiler |", "| ---: | --- | --- | --- |"]
    out += ["| %d | %s | %s | %s |" % ((n,) + record.runs[run]) for run, n in numbers.items()]
    out += ["", "| %s | suites | passed | failed | skipped | seconds |" % on,
            "| --- | ---: | ---: | ---: | ---: | ---: |"]
    keys = record.keys()
    for name in dict.fromkeys(k[0] for k in keys):
        rows = [record.rows[k][3:] for k in keys if k[0] == name]
        out.append("| %s | %d | %s |" % (name, len(rows), " | ".join(str(sum(c)) for c in zip(*rows))))
    out += ["", "## What failed", ""]
    failed = [(k, n) for k in keys for n in record.notes[k] if n[0] == "failed"]
    out += ["- %s %s `%s`: %s" % (k + n[1:]) for k, n in failed] or ["Nothing."]
    skips = collections.Counter()
    for key in keys:
        for note in record.notes[key]:
            if note[0] == "skipped":
                skips[note[2]] += int(note[1])
    if skips:
        out += ["", "## Why tests were skipped", ""]
        out += ["- %d: %s" % (n, why) for why, n in skips.most_common()]
    out += ["", "## By suite", "",
            "| %s | suite | sources | passed | failed | skipped | seconds | run |" % on,
            "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for key in keys:
        row = record.rows[key]
        out.append("| %s | %s | `%s` | %d | %d | %d | %d | %d |" % (key + (row[2][:8],) + tuple(row[3:]) + (numbers[row[0]],)))
    with open(path_of(kind, "md"), "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


def stale(kind):
    """Lines for the end of CI."""
    record, on = load(kind), KINDS[kind][0]
    if not record.rows:
        print("%s: nothing is recorded (%s)" % (kind, KINDS[kind][2]))
        return
    old = set(record.stale())
    for name in dict.fromkeys(k[0] for k in record.keys()):
        mine = [k for k in record.keys() if k[0] == name]
        suites = [k[1] for k in mine if k in old]
        line = "%s %s: %d suites recorded" % (on, name, len(mine))
        bad = sum(record.rows[k][4] > 0 for k in mine)
        line += ", %d with failures" % bad if bad else ""
        if suites:
            line += "; of older sources %d: %s" % (len(suites), " ".join(suites[:8]))
            line += " ..." if len(suites) > 8 else ""
        else:
            line += ", all of these sources"
        print(line)


def main():
    words = sys.argv[1:]
    if len(words) == 2 and words[0] == "summarize":
        record = summarize(words[1])
        sys.stdout.write(record.text())
        return int(any(row[4] for row in record.rows.values()))
    if len(words) < 2 or words[1] not in KINDS:
        sys.exit(__doc__)
    if words[0] == "merge":
        record = load(words[1])
        for path in words[2:]:
            record.take(Record().read(path))
        record.write(table_of(words[1]))
        page(words[1], record)
    elif words[0] == "page":
        page(words[1], load(words[1]))
    elif words[0] == "stale":
        stale(words[1])
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
