#!/usr/bin/env bash
# A Cloud TPU VM, of one host or many, by ssh; gcloud does the work. The guide is docs/pods.md.
#
#     export NAME=bert ZONE=us-west4-a              TYPE=v5litepod-16 VERSION=v2-alpha-tpuv5-lite are the defaults
#     launch/tpu_vm.sh create                       SPOT=yes: cheaper, and may be taken away
#     launch/tpu_vm.sh setup                        copies the last commit to every host and installs it there
#     export JAX_COMPILATION_CACHE_DIR=gs://BUCKET/compiled     or all hosts but the first compile at each start
#     launch/tpu_vm.sh start configs/bert_base.py data=gs://BUCKET/data run=gs://BUCKET/runs/base
#     launch/tpu_vm.sh revive configs/...           the same command where it neither goes on nor has ended: on a host that
#                                                   was started anew, say
#     launch/tpu_vm.sh log | running | code | stop | delete
#                                                   follow the first host's log; whether a run is going on, yes or no
#                                                   from each host; how it ended; save and stop; end the cost
set -euo pipefail
: "${NAME:?say NAME=..., the name of the TPU VM}" "${ZONE:?say ZONE=..., such as us-west4-a}"
case ${SPOT:-no} in
yes) spot=--spot ;;
no) spot='' ;;
*) echo "SPOT: found '$SPOT'; expected yes or no" >&2 && exit 2 ;;
esac
tpu_vm=(gcloud compute tpus tpu-vm)

on() { # on HOSTS COMMAND: runs a command on "all" hosts, or on one by its number
  "${tpu_vm[@]}" ssh "$NAME" --zone="$ZONE" --worker="$1" --command="$2"
}

# The number of a process means another one after the host was started anew.
# shellcheck disable=SC2016 # the hosts expand it
boot='$(cat /proc/sys/kernel/random/boot_id)'
same_boot="{ read -r pid boot <~/run.pid && [ \"\$boot\" = \"$boot\" ]; }"
running="{ $same_boot && kill -0 \"\$pid\"; } 2>/dev/null"
refuse="$running && { echo 'a run is going on here; stop it first' >&2; exit 1; }"
# A host that shuts down stops the run as `stop` does: once it is up again, only codes after which no run goes on count.
ended="{ read -r code <~/run.code && { case \$code in 0 | 2 | 3 | 5 | 130) ;; *) $same_boot ;; esac; }; } 2>/dev/null"

case ${1:-} in
create)
  "${tpu_vm[@]}" create "$NAME" --zone="$ZONE" --accelerator-type="${TYPE:-v5litepod-16}" \
    --version="${VERSION:-v2-alpha-tpuv5-lite}" ${spot:+"$spot"}
  ;;
setup)
  on all "$refuse || true" # before any host is touched: the code would change under a run
  folder=$(mktemp -d)
  trap 'rm -r "$folder"' EXIT
  git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$folder/bert_jax.tar.gz" HEAD
  "${tpu_vm[@]}" scp "$folder/bert_jax.tar.gz" "$NAME:" --zone="$ZONE" --worker=all
  # The images have Python 3.10, and bert_jax needs 3.11 or newer: uv brings it. Modules of an earlier commit go first:
  # the hosts compare all that they have.
  # shellcheck disable=SC2016 # the hosts expand it
  on all 'mkdir -p bert_jax && rm -rf bert_jax/bert_jax bert_jax/train && tar -xzf bert_jax.tar.gz -C bert_jax && cd bert_jax &&
    python3 -m pip install --quiet --user uv && uv=$HOME/.local/bin/uv &&
    { [ -x .venv/bin/python ] || $uv venv --quiet --python 3.11 .venv; } &&
    $uv pip install --quiet --constraint constraints/newest.txt --editable ".[train,tpu,gcs]"'
  ;;
start | revive)
  verb=$1 && shift
  (($#)) || { echo "say what to train: $0 $verb configs/bert_base.py data=... run=..." >&2 && exit 2; }
  printf -v words ' %q' "$@"
  [ -z "${JAX_COMPILATION_CACHE_DIR:-}" ] || printf -v cache 'JAX_COMPILATION_CACHE_DIR=%q ' "$JAX_COMPILATION_CACHE_DIR"
  case $verb in
  start) first=$refuse ;;
  revive) first="{ $running || $ended; } && exit" ;;
  esac
  on all "$first
    cd bert_jax && rm -f ~/run.code && { ${cache:-}RESTART_CODE=~/run.code nohup launch/restart.sh \
    .venv/bin/python -m train.pretrain$words >>~/run.log 2>&1 </dev/null & echo \"\$! $boot\" >~/run.pid; }"
  ;;
running) on all "if $running; then echo yes; else echo no; fi" ;; # if ssh fails it ends with another code than 0
log) on 0 'tail -n 40 -F run.log' ;;
code) on 0 "if $ended; then echo \"\$code\"; fi" ;;
stop) on all "$running && kill -TERM \"\$pid\" || true" ;;
delete) "${tpu_vm[@]}" delete "$NAME" --zone="$ZONE" --quiet ;;
*)
  sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
