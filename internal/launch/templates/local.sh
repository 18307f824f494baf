#!/usr/bin/env bash
# Runs {{.Name}} on this machine: all parts as processes, until the run is done or this script is ended; begun again it goes
# on where the run stopped. Logs are in the run folder. Written by milepost launch.
set -euo pipefail

MILEPOST_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
run={{quote .Run}}
logs=$run/logs
export MILEPOST_DIR MILEPOST_HOST=127.0.0.1 MILEPOST_TRAINER_HOST=127.0.0.1 MILEPOST_NATS_HOSTS=127.0.0.1
export MILEPOST_LOCAL="${MILEPOST_LOCAL:-$run}" MILEPOST_TOKEN_FILE="${MILEPOST_TOKEN_FILE:-$run/nats.token}"
mkdir -p "$logs" "$MILEPOST_LOCAL"
if [ ! -s "$MILEPOST_TOKEN_FILE" ]; then # a secret of this run, made here, written nowhere else
  (umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$MILEPOST_TOKEN_FILE")
fi

pids=()
start() { # start NAME INDEX [GPUS]
  (
    if [ $# -gt 2 ]; then export CUDA_VISIBLE_DEVICES=$3; fi
    exec "$MILEPOST_DIR/part.sh" "$1" "$2"
  ) >>"$logs/$1-$2.log" 2>&1 &
  pids+=($!)
}
stop() {
  trap '' TERM INT
  if [ "${#pids[@]}" -gt 0 ]; then
    kill -TERM "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
  fi
}
trap stop EXIT
trap 'exit 130' TERM INT

start nats 0
{{- if not .OwnServers}}{{range seq .Replicas}}
start serve {{.}}{{if $.GPUsPerNode}} {{quote ($.GPUList .)}}{{end}}{{end}}{{end}}
{{- if not .OwnTrainer}}
start trainer 0{{if .GPUsPerNode}} {{quote .TrainerGPUs}}{{end}}{{end}}
{{- range seq .ShadowWorkers}}
start shadow {{.}}{{end}}
{{- range seq .RolloutWorkers}}
start rollout {{.}}{{end}}
"$MILEPOST_DIR/part.sh" run 0 &
pids+=($!)
wait "${pids[-1]}"
