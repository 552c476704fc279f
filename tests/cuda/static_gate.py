#!/usr/bin/env python3
"""Reads what nvcc made of the kernels and holds it against tests/cuda/kernels.tsv.

    python3 tests/cuda/static_gate.py build          # objects under build/kernels/cuda

For every kernel and GPU architecture in the objects: registers at most those of the table, no spills
and no local memory, no floating-point atomics, and the instructions that the table demands (HMMA
tensor cores, LDSM ldmatrix, LDGSTS cp.async, .128 wide loads and stores) or forbids. A kernel that
counts its blocks (ATOMG) has a fence (MEMBAR) on both sides of each count: without them the last block
may add what others have not written yet, on a GPU alone. A kernel without a row and a row without a
kernel are failures too. Prints registers and computed occupancy by kernel.

Needs cuobjdump and nvdisasm: those of the CUDA toolkit, or NVIDIA's wheels, which are fetched into
build/cuda_tools when pip can. Where nvcc made nothing or the tools cannot be had, says so and skips.
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/cuda/kernels.tsv"
WHEELS = ["nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"]
# Of one multiprocessor: registers, threads, bytes of shared memory, blocks. CUDA C++ Programming
# Guide, table of technical specifications by compute capability.
LIMITS = {"sm_80": (65536, 2048, 164 * 1024, 32), "sm_90a": (65536, 2048, 228 * 1024, 32),
          "sm_100a": (65536, 2048, 228 * 1024, 32)}
# Of every block, by the driver; from sm_90 on cuobjdump counts it with the static ones.
RESERVED_SHARED = {"sm_80": 1024}
FORBIDDEN = r"\b(LDL|STL)\b|\b(RED|ATOM|ATOMG|ATOMS)\b\S*\.(F32|F16|BF16|F64|FTZ)"


def tool(name, build):
    """Path of `name`, fetched where it is not installed; None where it cannot be had."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    folder = build / "cuda_tools"
    fetched = sorted(folder.rglob(f"bin/{name}"))
    if found or fetched:
        return found or str(fetched[0])
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder,
                    *WHEELS], check=False)
    fetched = sorted(folder.rglob(f"bin/{name}"))
    return str(fetched[0]) if fetched else None


def output(*command, path=None):
    environment = {"PATH": path} if path else None
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


class Kernel:
    def __init__(self, architecture, symbol):
        self.architecture, self.symbol = architecture, symbol
        self.name, self.registers, self.stack, self.shared, self.local, self.sass = "", 0, 0, 0, 0, ""


def read_kernels(objects, cuobjdump, path):
    kernels = {}
    for file in objects:
        architecture = ""
        for line in output(cuobjdump, "--dump-resource-usage", file, path=path).splitlines():
            if match := re.match(r"arch = (\S+)", line):
                architecture = match[1]
            elif match := re.search(r"Function (\S+):", line):
                kernel = kernels.setdefault((architecture, match[1]), Kernel(architecture, match[1]))
            elif match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
                kernel.registers, kernel.stack, kernel.shared, kernel.local = map(int, match.groups())
        for line in output(cuobjdump, "--dump-sass", file, path=path).splitlines():
            if match := re.match(r"\s*arch = (\S+)", line):
                architecture = match[1]
            elif match := re.search(r"Function : (\S+)", line):
                kernel = kernels[architecture, match[1]]
            elif re.match(r"\s+/\*[0-9a-f]{4,}\*/", line):
                kernel.sass += line.split("*/", 1)[1].split(";")[0].strip() + "\n"
    names = output("c++filt", *[kernel.symbol for kernel in kernels.values()]).splitlines()
    for kernel, name in zip(kernels.values(), names):
        # "void maxim::(anonymous namespace)::f<float, 4>(float*)" -> "f<float, 4>"
        name = re.sub(r"\(anonymous namespace\)::|maxim::|^void ", "", name)
        kernel.name = re.sub(r"\(.*", "", name.replace("(int)", "").replace("(bool)", ""))
    return [kernel for kernel in kernels.values() if not kernel.name.startswith("cub::")]


def read_table():
    """Rows of: name (a regular expression for the whole name), threads, dynamic shared bytes, most
    registers, instructions wanted, instructions forbidden (words separated by blanks, - for none)."""
    rows = []
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, threads, shared, registers, wanted, forbidden = line.split("\t")
            words = [[] if field == "-" else field.split() for field in (wanted, forbidden)]
            rows.append((name, int(threads), int(shared), int(registers), *words))
    return rows


def occupancy(kernel, threads, shared):
    """Share of a multiprocessor's threads that can be resident, and blocks; (0, 0) if it is unknown."""
    if kernel.architecture not in LIMITS:
        return 0, 0
    registers, most_threads, most_shared, blocks = LIMITS[kernel.architecture]
    warp_registers = -(-kernel.registers * 32 // 256) * 256  # given out in units of 256 a warp
    shared += kernel.shared + RESERVED_SHARED.get(kernel.architecture, 0)
    blocks = min(blocks, most_threads // threads, registers // (warp_registers * threads // 32),
                 most_shared // max(1, shared))
    return blocks * threads / most_threads, blocks


def faults(kernel, row):
    _, _, _, registers, wanted, forbidden = row
    if kernel.registers > registers:
        yield f"{kernel.registers} registers, at most {registers} wanted"
    if kernel.stack or kernel.local:
        yield f"{kernel.stack} bytes of stack, {kernel.local} of local memory"
    if match := re.search(FORBIDDEN, kernel.sass):
        yield f"forbidden: {match[0]}"
    counts, fences = len(re.findall(r"\bATOMG?\b", kernel.sass)), kernel.sass.count("MEMBAR")
    if fences < 2 * counts:
        yield f"{counts} counts of blocks between {fences} fences"
    for word in wanted:
        if word not in kernel.sass:
            yield f"no {word}"
    for word in forbidden:
        if word in kernel.sass:
            yield f"has {word}"


def main():
    build = pathlib.Path(sys.argv[1])
    objects = sorted(build.glob("kernels/cuda/*.o"))
    objects = [file for file in objects if (ROOT / "kernels/cuda" / f"{file.stem}.cu").exists()]
    if not objects:
        print("static gate skipped: nvcc has made nothing here")
        return print("0 passed, 0 failed")
    cuobjdump, nvdisasm = tool("cuobjdump", build), tool("nvdisasm", build)
    if not cuobjdump or not nvdisasm:
        print("static gate skipped: cuobjdump and nvdisasm are neither installed nor to be had by pip")
        return print("0 passed, 0 failed")
    path = f"{pathlib.Path(nvdisasm).parent}:/usr/bin:/bin"
    kernels, rows = read_kernels(objects, cuobjdump, path), read_table()
    passed = failed = 0
    used = set()
    print(f"{'kernel':64}{'arch':>8}{'registers':>10}{'shared':>8}{'threads':>8}{'blocks':>7}{'occupancy':>10}")
    for kernel in sorted(kernels, key=lambda k: (k.name, k.architecture)):
        matches = [row for row in rows if re.fullmatch(row[0], kernel.name)]
        if len(matches) != 1:
            problems = [f"{len(matches)} rows of {TABLE.name} fit it"]
        else:
            used.add(matches[0][0])
            share, blocks = occupancy(kernel, matches[0][1], matches[0][2])
            print(f"{kernel.name:64}{kernel.architecture:>8}{kernel.registers:10}{matches[0][2]:8}"
                  f"{matches[0][1]:8}{blocks:7}{100 * share:9.0f}%")
            problems = list(faults(kernel, matches[0]))
        passed, failed = passed + (not problems), failed + bool(problems)
        for problem in problems:
            print(f"FAILED: {kernel.name} ({kernel.architecture}): {problem}")
    for row in rows:
        if row[0] not in used:
            failed += 1
            print(f"FAILED: {TABLE.name}: no kernel is called {row[0]}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
