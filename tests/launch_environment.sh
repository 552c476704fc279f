#!/bin/bash
# Starts RANKS copies of a program as torchrun would: tests/launch_environment.sh RANKS PROGRAM …
# Its exit code is that of the first rank that failed.
ranks=$1
shift
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
export MASTER_PORT=${MASTER_PORT:-$((20000 + $$ % 10000))}
pids=()
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  pids+=($!)
done
trap 'kill "${pids[@]}" 2> /dev/null' TERM INT
result=0
for pid in "${pids[@]}"; do
  wait "$pid"
  status=$?
  if [ $result = 0 ]; then result=$status; fi
done
exit $result
