#!/bin/bash
# Runs PROGRAM's collectives on two "hosts", network namespaces joined by a veth pair:
# tests/two_hosts.sh PROGRAM. Rank 0 knows the master by 127.0.0.1, as a host does whose own name
# stands beside 127.0.1.1 in /etc/hosts; the other host by its address (above 127: in gloo the higher
# address connects to the lower). Exit code 77: not allowed.
program=$1
a=maxim-a-$$ b=maxim-b-$$
cleanup() {
  kill $(jobs -p) 2> /dev/null
  ip netns delete $a 2> /dev/null
  ip netns delete $b 2> /dev/null
}
trap cleanup EXIT
if ! { ip netns add $a && ip netns add $b &&
       ip link add veth0 netns $a type veth peer name veth0 netns $b &&
       ip -n $a addr add 192.168.77.1/24 dev veth0 && ip -n $b addr add 192.168.77.2/24 dev veth0 &&
       for n in $a $b; do ip -n $n link set lo up && ip -n $n link set veth0 up || exit; done; } 2>&1
then
  echo "two hosts skipped: network namespaces are not allowed here"
  exit 77
fi
export WORLD_SIZE=3 MASTER_PORT=29500
MASTER_ADDR=127.0.0.1 RANK=0 ip netns exec $a "$program" "mpi: all_*,mpi: broadcast*" &
MASTER_ADDR=192.168.77.1 RANK=1 ip netns exec $b "$program" "mpi: all_*,mpi: broadcast*" &
second=$!
MASTER_ADDR=127.0.0.1 RANK=2 ip netns exec $a "$program" "mpi: all_*,mpi: broadcast*" &
third=$!
wait %1 && wait $second && wait $third
