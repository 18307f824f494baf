#!/usr/bin/env bash
# Starts one part of the run: part.sh nats|serve|trainer|shadow|rollout|run [INDEX]. A part that ends is begun again, the run
# until it is done; where a scheduler sees to that, MILEPOST_ONCE is set. Written by milepost launch.
#
# Where things are comes from the environment:
#   MILEPOST_DIR           folder of config.yaml
#   MILEPOST_TOKEN_FILE    file with the secret of the messenger
#   MILEPOST_NATS_HOSTS    hosts of the NATS servers, separated by blanks; INDEX is this one's place
#   MILEPOST_TRAINER_HOST  host of the trainer's first node; INDEX is this one's place{{if and .Transfer (not .OwnTrainer)}}
#   MILEPOST_TRANSFER_HOST name or address of it that is no loopback on itself either; default MILEPOST_TRAINER_HOST{{end}}
#   MILEPOST_HOST          address of this machine that the others reach
#   MILEPOST_LOCAL         disk of this machine
set -euo pipefail

milepost=${MILEPOST:-{{quote .Program}}}
config=$MILEPOST_DIR/config.yaml
run={{quote .Run}}
name=$1 index=${2:-0}
read -ra nats <<<"$MILEPOST_NATS_HOSTS"
url=$(printf ',nats://%s:{{.Shifted 4222}}' "${nats[@]}")
url=${url:1}
streams={{.NATSServers}} # copies of each message

part() { # part NAME: its command, in command
  local messenger=(--nats "$url" --token-file "$MILEPOST_TOKEN_FILE" --connect-timeout 5m)
  case $1 in
    nats)
      local routes
      routes=$(printf ',%s:{{.Shifted 6222}}' "${nats[@]}")
      command=("$milepost" nats --name "{{.Name}}-nats-$index" --dir "$MILEPOST_LOCAL/nats-$index" --listen "$MILEPOST_HOST:{{.Shifted 4222}}" --http "$MILEPOST_HOST:{{.Shifted 8222}}"
        --token-file "$MILEPOST_TOKEN_FILE")
      if [ "${#nats[@]}" -gt 1 ]; then command+=(--cluster "$MILEPOST_HOST:{{.Shifted 6222}}" --routes "${routes:1}"); fi
      ;;
    serve)
      command=("$milepost" worker serve -c "$config" "${messenger[@]}" --name "$(printf 'serve-%.50s-%s' "${MILEPOST_HOST//[^A-Za-z0-9]/-}" "$index")" --dir "$MILEPOST_LOCAL/serve-$index" --set "server.host=$MILEPOST_HOST" --set "server.port=$(({{.Shifted 8000}} + index))" --set server.replicas=1)
      ;;
    trainer)
      command=("$milepost" trainer serve -c "$config" --listen "$MILEPOST_HOST:{{.Shifted 29600}}" --nodes {{.TrainerNodes}} --node "$index" --master "$MILEPOST_TRAINER_HOST:{{.Shifted 29500}}")
      ;;
    shadow)
      command=("$milepost" worker shadow -c "$config" "${messenger[@]}" --dir "$MILEPOST_LOCAL/shadow-$index" --metrics "$MILEPOST_HOST:$(({{.Shifted 9500}} + index))"
        --set "probes.worker.streams.replicas=$streams" --set "probes.prober.streams.replicas=$streams")
      ;;
    rollout)
      command=("$milepost" worker rollout -c "$config" "${messenger[@]}" --dir "$MILEPOST_LOCAL/rollout-$index" --metrics "$MILEPOST_HOST:$(({{.Shifted 9600}} + index))")
      ;;
    run)
      local where=(--set "probes.connect.url=$url" --set "probes.connect.token_file=$MILEPOST_TOKEN_FILE" --set probes.connect.timeout=5m --set "metrics.listen=$MILEPOST_HOST:{{.Shifted 9464}}"{{if not .OwnTrainer}} --set "trainer.address=$MILEPOST_TRAINER_HOST:{{.Shifted 29600}}"{{if .Transfer}} --set "weights.transfer.host=${MILEPOST_TRANSFER_HOST:-$MILEPOST_TRAINER_HOST}"{{end}}{{end}})
      if [ -e "$run/config.yaml" ]; then
        command=("$milepost" train --resume "$run" "${where[@]}")
      else
        command=("$milepost" train -c "$config" "${where[@]}" --set "probes.prober.streams.replicas=$streams" --set "probes.worker.streams.replicas=$streams"{{if .ShadowWorkers}}
          --set probes.local=false{{end}}{{if .RolloutWorkers}} --set workers.mode=remote{{end}}{{if not .OwnServers}} --set server.replicas=0{{end}}{{if not .OwnTrainer}} --set trainer.ranks=1{{end}})
      fi
      ;;
    *)
      echo "part.sh: no part is called $1" >&2
      exit 2
      ;;
  esac
}

if [ -n "${MILEPOST_ONCE:-}" ]; then
  part "$name"
  exec "${command[@]}"
fi

set -m # the part has a process group of its own: a signal to this one's reaches it once, by the trap
child='' stopping=''
hand_on() { # SLURM signals every process of a step itself, and a second signal ends a part at once
  stopping=1
  if [ -n "$child" ] && [ -z "${SLURM_STEP_ID:-}" ]; then kill -TERM "$child" 2>/dev/null || true; fi
}
trap hand_on TERM INT
tries=0
while [ -z "$stopping" ]; do
  part "$name"
  started=$SECONDS code=0
  "${command[@]}" &
  child=$!
  wait "$child" || code=$?
  if [ -n "$stopping" ]; then # the first wait was cut short by the signal
    code=0
    wait "$child" || code=$?
    exit "$code"
  fi
  # 0: the run is done; 2: the command line or configuration is wrong, and would be so again
  if [ "$code" = 2 ] || { [ "$name" = run ] && [ "$code" = 0 ]; }; then exit "$code"; fi
  if [ $((SECONDS - started)) -gt 600 ]; then tries=0; fi
  tries=$((tries + 1))
  if [ "$tries" -gt 20 ]; then
    echo "part.sh: $name $index ended $tries times within ten minutes of its start, last with $code" >&2
    exit "$code"
  fi
  echo "part.sh: $name $index ended with $code; again in $((tries * 3)) s" >&2
  sleep $((tries * 3)) &
  child=$!
  wait "$child" || true
done
