#!/usr/bin/env bash
# A TPU pod from the queue: asks, waits, trains, asks again whenever the pod is taken away, and gives it back at the end,
# or once it could not be set up ten times in a row. Leave it running (in tmux, say) on a machine of yours. The variables
# are those of launch/tpu_vm.sh; SPOT=yes for spot.
#
#     export JAX_COMPILATION_CACHE_DIR=gs://BUCKET/compiled
#     NAME=bert ZONE=us-west4-a SPOT=yes launch/queued_resource.sh configs/bert_base.py data=gs://... run=gs://...
set -euo pipefail
: "${NAME:?say NAME=..., the name of the TPU pod}" "${ZONE:?say ZONE=..., such as us-west4-a}"
(($#)) || { echo "say what to train: $0 configs/bert_base.py data=... run=..." >&2 && exit 2; }
case ${SPOT:-no} in
yes) spot=--spot ;;
no) spot='' ;;
*) echo "SPOT: found '$SPOT'; expected yes or no" >&2 && exit 2 ;;
esac
command -v gcloud >/dev/null || { echo "gcloud: not found; install it: https://cloud.google.com/sdk" >&2 && exit 2; }
queue=(gcloud compute tpus queued-resources) here=$(dirname "$0") started=no failed=0 most=10
reason=$(git -C "$here/.." archive HEAD 2>&1 >/dev/null) ||
  { echo "cannot pack the last commit of this checkout, which the hosts get: $reason" >&2 && exit 2; }

state() { "${queue[@]}" describe "$NAME" --zone="$ZONE" --format='value(state.state)' 2>/dev/null || echo NONE; }
give_back() { "${queue[@]}" delete "$NAME" --zone="$ZONE" --force --quiet; }
leave() { # leave CODE: ends without a pod
  give_back || echo "the pod still costs: gcloud compute tpus queued-resources delete $NAME --zone=$ZONE --force" >&2
  exit "$1"
}
again() { echo "$1; the next round, in ${POLL:-60} s, tries again" >&2; }

while true; do
  case $(state) in
  NONE)
    if "${queue[@]}" create "$NAME" --node-id="$NAME" --zone="$ZONE" --accelerator-type="${TYPE:-v5litepod-16}" \
      --runtime-version="${VERSION:-v2-alpha-tpuv5-lite}" ${spot:+"$spot"}; then
      started=no failed=0
    else
      again "not asked for"
    fi
    ;;
  ACTIVE)
    if [ "$started" = no ]; then
      answered=yes
      found=$("$here/tpu_vm.sh" running) || answered=no
      if grep -qx yes <<<"$found"; then # on one host at least, since an earlier call of this script
        started=yes
      elif [ "$answered" = no ]; then
        again "the hosts do not answer"
      elif "$here/tpu_vm.sh" setup && "$here/tpu_vm.sh" start "$@"; then
        started=yes
      elif ((++failed < most)); then
        again "not started"
      else
        echo "not started in $most tries in a row: giving up" >&2
        leave 1
      fi
    elif code=$("$here/tpu_vm.sh" code) && [ -n "$code" ]; then
      echo "the run ended with exit code $code"
      leave "$code"
    else
      "$here/tpu_vm.sh" revive "$@" || again "the hosts do not answer"
    fi
    ;;
  SUSPENDED | FAILED) # taken away, or never there: it is asked for again
    started=no
    give_back || again "not given back"
    ;;
  esac
  sleep "${POLL:-60}"
done
