#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The compiled kernels can be launched: cuda_images.py [--cuobjdump PROGRAM] OBJECT...

Reads registers, static shared memory and the most threads of a block out of every machine code image
in the objects, and holds them against what a multiprocessor of any supported architecture has: 65 536
registers (handed out to warps in pieces of 256), 1024 threads, 48 KiB of static shared memory. A
kernel of the library says how many threads it is launched with (__launch_bounds__); one that does not
is taken for one of 1024. Prints one line per violation; exit status 1 if there is any, 77 if there is
no cuobjdump.
"""
import argparse
import re
import shutil
import subprocess
import sys

REGISTERS, PIECE, MOST_THREADS, STATIC = 65536, 256, 1024, 48 * 1024
SKIPPED = 77


def output_of(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def resources_of(program, path):
    """(architecture, kernel) -> (registers, static shared memory)"""
    found, architecture, name = {}, "", ""
    for line in output_of(program, "--dump-resource-usage", path).splitlines():
        if match := re.match(r"arch = (\S+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) .*SHARED:(\d+)", line):
            found[architecture, name] = int(match[1]), int(match[2])
    return found


def threads_of(program, path):
    """(architecture, kernel) -> the most threads of a block; kernels that do not say are missing."""
    found, architecture, name, ahead = {}, "", "", False
    for line in output_of(program, "-elf", path).splitlines():
        if match := re.match(r"arch = (\S+)", line):
            architecture = match[1]
        elif match := re.match(r"\.nv\.info\.(\S+)", line):
            name = match[1]
        elif "EIATTR_MAX_THREADS" in line:
            ahead = True
        elif ahead and (match := re.search(r"Value:\s*(.*)", line)):
            n = 1
            for word in match[1].split():
                n *= int(word, 16)
            found[architecture, name], ahead = n, False
    return found


def violations_of(program, path):
    bounds = threads_of(program, path)
    kernels = resources_of(program, path)
    wrong = []
    for (architecture, name), (registers, shared) in sorted(kernels.items()):
        threads = bounds.get((architecture, name), MOST_THREADS)
        warps = (threads + 31) // 32
        taken = (registers * 32 + PIECE - 1) // PIECE * PIECE * warps
        what = f"{path}: {architecture} {name}"
        if taken > REGISTERS:
            wrong.append(f"{what}: {registers} registers of {threads} threads are {taken}")
        if threads > MOST_THREADS:
            wrong.append(f"{what}: {threads} threads")
        if shared > STATIC:
            wrong.append(f"{what}: {shared} bytes of static shared memory")
    return wrong, len(kernels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump")
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    program = arguments.cuobjdump or shutil.which("cuobjdump")
    if program is None:
        print("no cuobjdump: the compiled kernels are not checked")
        return SKIPPED
    wrong, n = [], 0
    for path in arguments.objects:
        more, kernels = violations_of(program, path)
        wrong += more
        n += kernels
    print("\n".join(wrong + [f"{n} compiled kernels, {len(wrong)} that cannot be launched"]))
    return 1 if wrong or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
