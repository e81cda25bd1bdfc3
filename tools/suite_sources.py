#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which sources each program of tests is built from, on standard output.

    tools/suite_sources.py BUILD [PROGRAM..]

BUILD is a folder that Ninja has built; the programs are those of tests_suites.txt unless named. Sources are
the files of this tree that were compiled into what is linked, with all that they include: of an archive
only the members that the program uses, as the symbols say. Of a folder of the library its CMake files
belong to it, since they hold the flags of kernels. One line a program:

    program  kernels  hash  files

with tabs between; programs that are not built are left out. `kernels` is `none` where no kernel of the CPU tier is linked, `narrowed` where the
program obeys SHARPI_TEST_ISA, and `shared` where it uses the shared library, which does not. The first line
names the compiler: `# compiler TEXT`.
"""
import functools
import glob
import hashlib
import os
import re
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


def hash_of(files):
    """One number for the names and contents of files of the tree; a file that is gone counts as such."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(("%s %s\n" % (name, content_hash(name))).encode())
    return total.hexdigest()[:16]


@functools.lru_cache(maxsize=None)
def content_hash(name):
    try:
        with open(os.path.join(ROOT, name), "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()
    except OSError:
        return "absent"


@functools.lru_cache(maxsize=None)
def cmake_files(folder):
    """The CMake files of the library's folder that a source lies in."""
    parts = folder.split("/")
    is_tier = os.path.exists(os.path.join(ROOT, parts[0], "tier.cmake"))  # of a GPU, beside lib
    if parts[0] != "lib" and not is_tier:
        return frozenset()
    top = parts[0] if is_tier else "/".join(parts[:2])
    found = glob.glob(os.path.join(ROOT, top, "CMakeLists.txt"))
    found += glob.glob(os.path.join(ROOT, top, "**", "*.cmake"), recursive=True)
    return frozenset(os.path.relpath(path, ROOT) for path in found) | {"cmake/SharpiCompile.cmake"}


class Build:
    """What Ninja knows of a build folder."""

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        self.deps = self._read_deps()
        self.inputs = {}

    def _ninja(self, *words):
        # -n: a build that goes on meanwhile keeps its log of dependencies.
        return subprocess.run(("ninja", "-n", "-C", self.folder, "-t") + words, capture_output=True,
                              text=True, check=True).stdout

    def _read_deps(self):
        deps, files = {}, None
        for line in self._ninja("deps").splitlines():
            if line.startswith("    "):
                files.append(line.strip())
            elif ": #deps" in line:
                files = deps.setdefault(line.split(": #deps")[0], [])
        return deps

    def query(self, targets):
        """Learns the inputs of targets, without those that only have to be there first."""
        targets = [t for t in targets if t not in self.inputs]
        at, reading = None, False
        for line in self._ninja("query", *targets).splitlines() if targets else ():
            if not line.startswith(" "):
                at, reading = self.inputs.setdefault(line.rstrip(":"), []), False
            elif line.startswith("  input:"):
                reading = True
            elif line.startswith("  outputs:"):
                reading = False
            elif reading and line.startswith("    ") and not line.startswith("    ||"):
                at.append(line.strip().lstrip("| "))

    def parts(self, target):
        """(objects, archives, shared libraries) of the tree that a target is linked from."""
        self.query([target])
        own = [i for i in self.inputs[target] if not i.startswith("/")]
        shared = [i for i in own if re.search(r"\.so(\.|$)", i)]
        return ([i for i in own if i.endswith(".o")], [i for i in own if i.endswith(".a")], shared)

    @functools.lru_cache(maxsize=None)
    def sources(self, item):
        """Files of the tree behind an object, those of its precompiled header included."""
        found = set()
        for path in self.deps.get(item, ()):
            path = os.path.realpath(os.path.join(self.folder, path))
            if path.startswith(self.folder + os.sep) or not path.startswith(ROOT + os.sep):
                continue
            found.add(os.path.relpath(path, ROOT))
        # What lies in a precompiled header is no dependency of those who take it; the header itself is.
        for path in self.inputs.get(item, ()):
            if re.search(r"\.(gch|pch)$", path):
                found |= self.sources(path)
        return frozenset(found)

    def compiler(self):
        """The names and versions of the compilers, from what CMake found."""
        said = []
        for language in ("CXX", "CUDA"):
            for path in glob.glob(self.folder + "/CMakeFiles/*/CMake%sCompiler.cmake" % language):
                with open(path, encoding="utf-8") as f:
                    text = f.read()
                found = [re.search(r'CMAKE_%s_COMPILER_%s "([^"]*)"' % (language, what), text)
                         for what in ("ID", "VERSION")]
                name = {"GNU": "GCC", "NVIDIA": "CUDA"}.get(found[0].group(1), found[0].group(1))
                said.append("%s %s" % (name, found[1].group(1)))
        return ", ".join(said)


class Symbols:
    """What objects define and what they ask for."""

    def __init__(self, folder):
        self.folder, self.known = folder, {}

    def read(self, objects):
        objects = [o for o in objects if o not in self.known]
        for o in objects:
            self.known[o] = (set(), set())
        for first in range(0, len(objects), 200):
            said = subprocess.run(["nm", "-A", "-P"] + objects[first:first + 200], cwd=self.folder,
                                  capture_output=True, text=True, check=True).stdout
            for line in said.splitlines():
                name, rest = line.split(": ", 1)
                symbol, kind = rest.split(" ")[:2]
                if kind == "U":
                    self.known[name][1].add(symbol)
                elif kind.isupper() or kind == "u":
                    self.known[name][0].add(symbol)

    def linked(self, objects, members):
        """The objects, and the members of archives that they need."""
        definer = {}
        for member in reversed(members):
            for symbol in self.known[member][0]:
                definer[symbol] = member
        used, queue = set(objects), list(objects)
        while queue:
            for symbol in self.known[queue.pop()][1]:
                member = definer.get(symbol)
                if member is not None and member not in used:
                    used.add(member)
                    queue.append(member)
        return used


def linked_objects(build, symbols, program):
    """(objects that a program is made of, whether the shared library is among what it uses)."""
    objects, archives, shared = build.parts(program)
    members = [m for a in archives for m in build.parts(a)[0]]
    for part in objects + members:
        if not os.path.exists(os.path.join(build.folder, part)):
            sys.exit("%s: %s is not there; finish the build first" % (program, part))
    symbols.read(objects + members)
    used = symbols.linked(objects, members)
    for library in shared:
        used |= set(build.parts(library)[0])
    build.query(sorted(used))
    return used, bool(shared)


def kernels_of(used, shared):
    if shared:
        return "shared"
    # What a processor has is known without kernels: isa.cc, isa_x86.cc, ...
    kernels = [o for o in used if o.startswith("lib/cpu/") and not re.search(r"/isa(_[a-z0-9]+)?\.cc\.o$", o)]
    return "narrowed" if kernels else "none"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = Build(sys.argv[1])
    programs = sys.argv[2:]
    if not programs:
        with open(build.folder + "/tests_suites.txt", encoding="utf-8") as f:
            programs = [os.path.relpath(line.split()[0], build.folder) for line in f if line.strip()]
    symbols = Symbols(build.folder)
    print("# compiler " + build.compiler())
    for program in programs:
        if not os.path.exists(os.path.join(build.folder, program)):
            print(program + " is not built", file=sys.stderr)
            continue
        used, shared = linked_objects(build, symbols, program)
        absent = [o for o in used if o not in build.deps]
        if absent:
            sys.exit("%s: Ninja has no record of %s; build it with Ninja here" % (program, absent[0]))
        files = set().union(*(build.sources(o) for o in used))
        files = files.union(*(cmake_files(os.path.dirname(name)) for name in files))
        print("\t".join((os.path.basename(program), kernels_of(used, shared), hash_of(files),
                         " ".join(sorted(files)))))


if __name__ == "__main__":
    main()
