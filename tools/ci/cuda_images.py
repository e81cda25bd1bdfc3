#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The compiled kernels can be launched: cuda_images.py [options] OBJECT...

Reads registers, static shared memory and the most threads of a block out of every machine code image
in the objects, whatever architectures there are, and holds them against what a multiprocessor has, the
same from 8.0 to 12.1: 65 536 registers (handed out to warps in pieces of 256), 1024 threads, 48 KiB of
static shared memory. A kernel of the library says how many threads it is launched with
(__launch_bounds__); one that does not is taken for one of 1024. What plans count on in kernels with
dynamic shared memory is read from cuda/kernels/kernel_limits.h: threads, static shared memory, and
blocks of a multiprocessor at once.

  --cuobjdump PROGRAM   the disassembler; default: the one on the path
  --architectures LIST  that there must be images of, with commas: 80,90,90a
  --every-kernel        every kernel of kernel_limits.h must be there
  --but REGEX           except those
Prints one line per violation, then what was checked; exit status 1 if there is any violation, 77 if
there is no cuobjdump.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

REGISTERS, PIECE, MOST_THREADS, STATIC = 65536, 256, 1024, 48 * 1024
SKIPPED = 77
LIMITS = pathlib.Path(__file__).resolve().parents[2] / "cuda/kernels/kernel_limits.h"


def output_of(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def read_limits(path):
    """kernel -> (threads, static shared memory, blocks)"""
    lines = re.findall(r'\{"(\w+)", (\d+), (\d+), (\d+)\}', path.read_text())
    return {kernel: tuple(int(n) for n in numbers) for kernel, *numbers in lines}


def limited(limits, name):
    """The kernel of the limits that a mangled name is of, or None. Names carry their length; a digit in
    front of it may end the name of the file."""
    for kernel in limits:
        if f"{len(kernel)}{kernel}" in name:
            return kernel
    return None


def resources_of(program, path):
    """(architecture, kernel) -> (registers, static shared memory) as the disassembler says; None for a
    kernel of which it says nothing."""
    found, architecture, name = {}, "", ""
    for line in output_of(program, "--dump-resource-usage", path).splitlines():
        if match := re.match(r"arch = sm_(\S+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
            found[architecture, name] = None
        elif match := re.search(r"REG:(\d+) .*SHARED:(\d+)", line):
            found[architecture, name] = int(match[1]), int(match[2])
    return found


def threads_of(program, path):
    """(architecture, kernel) -> the most threads of a block; kernels that do not say are missing."""
    found, architecture, name, ahead = {}, "", "", False
    for line in output_of(program, "-elf", path).splitlines():
        if match := re.match(r"arch = sm_(\S+)", line):
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


def reserved_in(kernels):
    """architecture -> what images of it count as shared memory of every kernel: the device's own part,
    which a kernel that does nothing (cuda/kernels/modules.h) has as well."""
    return {architecture: numbers[1] for (architecture, name), numbers in kernels.items()
            if numbers is not None and "13module_kernelEv" in name}


def faults_of(limit, registers, static, threads):
    """What is wrong with one kernel. limit: of kernel_limits.h, or None; threads: None, not said."""
    most_threads, most_static, blocks = limit or (MOST_THREADS, STATIC, 1)
    n = MOST_THREADS if threads is None else threads
    taken = (registers * 32 + PIECE - 1) // PIECE * PIECE * ((n + 31) // 32) * blocks
    if taken > REGISTERS:
        yield f"{registers} registers of {blocks} x {n} threads are {taken}"
    if n > most_threads:
        yield f"{n} threads, {most_threads} at most"
    if static > most_static:
        yield f"{static} bytes of static shared memory, {most_static} at most"


def check(program, path, limits, seen):
    """Violations of an object; seen: architecture -> kernels of the limits, and how many there are."""
    bounds, kernels = threads_of(program, path), resources_of(program, path)
    reserved, wrong = reserved_in(kernels), []
    for (architecture, name), numbers in sorted(kernels.items()):
        what = f"{path}: sm_{architecture} {name}"
        if numbers is None:
            wrong.append(f"{what}: the disassembler says nothing of it")
            continue
        kernel = limited(limits, name)
        names = seen.setdefault(architecture, {"": 0})
        names[""] += 1
        if kernel:
            names[kernel] = names.get(kernel, 0) + 1
        static = numbers[1] - reserved.get(architecture, 0)
        wrong += [f"{what}: {fault}" for fault in
                  faults_of(limits.get(kernel), numbers[0], static, bounds.get((architecture, name)))]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump")
    parser.add_argument("--architectures", default="")
    parser.add_argument("--every-kernel", action="store_true")
    parser.add_argument("--but", default="(?!)")
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    program = arguments.cuobjdump or shutil.which("cuobjdump")
    if program is None:
        print("no cuobjdump: the compiled kernels are not checked")
        return SKIPPED
    limits, seen, wrong = read_limits(LIMITS), {}, []
    if not limits:
        wrong.append(f"{LIMITS}: no limits")
    for path in arguments.objects:
        wrong += check(program, path, limits, seen)
    for architecture in filter(None, arguments.architectures.split(",")):
        if architecture not in seen:
            wrong.append(f"no machine code of sm_{architecture}")
    there = {kernel for names in seen.values() for kernel in names}
    if arguments.every_kernel:
        wrong += [f"{kernel}: not among the images" for kernel in sorted(limits.keys() - there)
                  if not re.search(arguments.but, kernel)]
    n = sum(names[""] for names in seen.values())
    images = ", ".join(f"sm_{a} ({names['']} kernels)" for a, names in sorted(seen.items()))
    print("\n".join(wrong + [f"{images or 'no image'}: {len(wrong)} faults"]))
    return 1 if wrong or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
