#!/usr/bin/env bash
# Nodes of GPUs under Slurm, one process for each GPU: sbatch launch/slurm.sh configs/bert_base.py data=DIR run=DIR
# The checkout, its .venv (python .ci/install.py constraints/newest.txt train,cuda), data and run lie on a file system
# that all nodes share. The job is queued again until the run is done.
#SBATCH --job-name=bert
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@900
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -u
# 15 minutes before the time limit, and when the job is preempted, every process gets SIGTERM, saves and ends with 75.
# One that hangs is killed seven minutes after the first has ended; those that only wait for each other end before that.
# At the limit Slurm ends this script too, and the job would not be queued again: the five minutes that a save may take
# (budgets.grace) and those seven pass before it.
# srun does not take --cpus-per-task from above (since Slurm 22.05), and gives one CPU without it.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --wait=420 .venv/bin/python -m train.pretrain "$@"
code=$?
case $code in 0 | 2 | 3 | 5 | 130) exit "$code" ;; esac
if ((${SLURM_RESTART_COUNT:-0} < 50)); then
  echo "exit code $code: queued again" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
