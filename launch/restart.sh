#!/usr/bin/env bash
# Repeats a training command until it is done: launch/restart.sh .venv/bin/python -m train.pretrain CONFIG.py run=RUN ...
# The command resumes by itself. Exit codes 0 (done), 2 (a mistake in the input), 3 (the loss stayed non-finite), 5 (the
# run is hopeless) and 130 (Ctrl-C) end the loop; all others start the command again: 75 (stopped, or another host was
# lost) and aborts among them. After five runs in a row that each ended within ten minutes it gives up. SIGTERM and
# Ctrl-C go to the command, which saves; then the loop ends too. RESTART_CODE=FILE: writes the last exit code there.
set -u
(($#)) || { echo "say what to run: $0 .venv/bin/python -m train.pretrain CONFIG.py run=RUN ..." >&2 && exit 2; }
# Longer than a run waits for a host that never comes (--join-seconds, 300), which has brought nothing.
pause=${RESTART_PAUSE:-10} quick=${RESTART_QUICK:-600} most=5

command='' early='' stopping=no short=0
forward() {
  stopping=yes
  if [ -n "$command" ]; then kill -s "$1" "$command" 2>/dev/null; else early=$1; fi
}
trap 'forward TERM' TERM HUP
trap 'forward INT' INT

end() {
  [ -z "${RESTART_CODE:-}" ] || echo "$code" >"$RESTART_CODE"
  exit "$code"
}

while true; do
  started=$SECONDS
  # After setsid a terminal's Ctrl-C does not reach it, so it gets one and not two: a second one does not save. bash has
  # background commands ignore SIGINT, until the program sets a handler seconds later.
  (trap - INT && exec setsid "$@") &
  command=$!
  [ -z "$early" ] || kill -s "$early" "$command" 2>/dev/null # it came when the command had no number yet
  wait "$command"
  code=$?
  while kill -0 "$command" 2>/dev/null; do # a signal ends `wait` before the command
    wait "$command"
    code=$?
  done
  command=''
  case $code in 0 | 2 | 3 | 5 | 130) end ;; esac
  [ "$stopping" = yes ] && end
  if ((SECONDS - started < quick)); then short=$((short + 1)); else short=0; fi
  if ((short >= most)); then
    echo "restart.sh: exit code $code, the $most. time in a row within $quick s: giving up" >&2
    end
  fi
  echo "restart.sh: exit code $code; starting again in $pause s" >&2
  sleep "$pause"
  [ "$stopping" = yes ] && end
done
