#!/bin/bash
# Runs the MPI tests under a Slurm of one node that it starts itself (Debian: apt-get install
# slurm-wlm munge; as root), by srun with PMIx and by srun with nothing but MASTER_ADDR:
# tests/slurm.sh [build directory]. Takes 10 s.
cd "$(dirname "$0")/.." || exit 1
program=${1:-build}/tests/mpi_tests
if ! command -v srun slurmd slurmctld munged > /dev/null || [ "$(id -u)" != 0 ]; then
  echo "Slurm skipped: it needs root, and slurm-wlm and munge"
  exit 77
fi
work=$(mktemp -d)
host=$(hostname -s)
cleanup() {
  for daemon in slurmd slurmctld munged; do
    if [ -s "$work/$daemon.pid" ]; then kill "$(cat "$work/$daemon.pid")"; fi
  done
  sleep 1  # they still write there
  rm -rf "$work"
}
trap cleanup EXIT
chmod 755 "$work"
head -c 1024 /dev/urandom > "$work/munge.key"
chmod 400 "$work/munge.key"
mkdir "$work/state" "$work/spool"
munged --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
  --log-file="$work/munged.log" --seed-file="$work/munged.seed" || exit 1
cat > "$work/slurm.conf" << END
ClusterName=maxim
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldPort=26817
SlurmdPort=26818
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc)
PartitionName=all Nodes=$host Default=YES State=UP
END
export SLURM_CONF=$work/slurm.conf
slurmctld && slurmd || exit 1
for _ in {1..20}; do
  if sinfo -h -o %T 2> /dev/null | grep -q idle; then break; fi
  sleep 0.5
done
tasks=$(($(nproc) < 2 ? 1 : 2))
failed=0
check() {
  echo "--- $*"
  timeout 60 "$@" || failed=1
}
if srun --mpi=list 2>&1 | grep -q pmix; then check srun -n $tasks --mpi=pmix "$program"; fi
export MASTER_ADDR=$host
check srun -n $tasks --mpi=none "$program"
exit $failed
