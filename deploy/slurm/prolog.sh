#!/bin/sh
# Prolog of slurmd: before a job starts on a node, look whether its ranks could report from there.
#
# If they could not, the job starts all the same, and the journal says why nobody will see it. With
# RANKSKEW_REQUIRED=yes the prolog fails instead: Slurm drains the node, and requeues and holds the job.
# It takes no longer than RANKSKEW_WAIT and eight seconds. Settings: /etc/default/rankskew-slurm.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin  # slurmd passes none on
RANKSKEW_BIN=/opt/rankskew/bin
RANKSKEW_WAIT=10
RANKSKEW_REQUIRED=no
# shellcheck source=/dev/null
[ ! -r /etc/default/rankskew-slurm ] || . /etc/default/rankskew-slurm

# As the job's user: root could report where that user may not.
said=$(timeout --kill-after=3 "$((RANKSKEW_WAIT + 5))" \
    runuser --user "$SLURM_JOB_USER" -- \
    "$RANKSKEW_BIN/rank-probe" check --wait "${RANKSKEW_WAIT}s" 2>&1) && exit 0
why=$(printf '%s\n' "$said" | tail -n 1)
logger -t rankskew-slurm -p daemon.warning "job $SLURM_JOB_ID: ${why:-rank-probe check did not end}"
[ "$RANKSKEW_REQUIRED" != yes ]
