#!/bin/bash
# Runs every test program of a build (tests/run.sh [build directory]), the MPI tests on 1 to 4
# ranks under mpirun (also on emulated GPUs, over NCCL) and started by variables alone, and closes
# with the sum of their lines: "N passed, N failed". A program that dies before its closing line
# counts as one failure.
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
# Only root needs these two; only more ranks than cores need --oversubscribe.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
output=$(mktemp)
trap 'rm -f "$output"' EXIT
passed=0 failed=0

run() {
  echo "--- $*"
  timeout --kill-after=10 900 "$@" | tee "$output"
  local status=${PIPESTATUS[0]} line
  line=$(grep -aoE '^[0-9]+ passed, [0-9]+ failed' "$output" | tail -n 1)
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    if [ "$status" = 0 ] || [ "${BASH_REMATCH[2]}" != 0 ]; then return; fi
  fi
  echo "FAILED: exit code $status, closing line '$line': $*"
  failed=$((failed + 1))
}

run "$build/tests/unit_tests"
for ranks in 1 2 3 4; do
  run mpirun --oversubscribe -np $ranks "$build/tests/mpi_tests"
done
for ranks in 1 2 3 4; do
  run tests/launch_environment.sh $ranks "$build/tests/mpi_tests"
done
if command -v slurmd > /dev/null && [ "$(id -u)" = 0 ]; then run tests/slurm.sh "$build"; fi
for program in emulator_tests unit_tests; do
  if [ -e "$build/emulated/tests/$program" ]; then run "$build/emulated/tests/$program"; fi
done
for ranks in 1 2 3 4; do
  if [ ! -e "$build/emulated/tests/mpi_tests" ]; then continue; fi
  run mpirun --oversubscribe -np $ranks "$build/emulated/tests/mpi_tests"
done
if [ -e "$build/tests/program_tests" ]; then run "$build/tests/program_tests"; fi
if command -v python3 > /dev/null; then
  run python3 tests/cuda/static_gate.py "$build"
else
  echo "static gate skipped: there is no python3"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
