#!/bin/sh
# Epilog of slurmd: note in the journal what was wrong with the job when it ended, if anything was.
#
# There is nothing to clean up. An epilog that fails drains the node, so this one does not, and it
# takes no longer than eight seconds. Settings: /etc/default/rankskew-slurm.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin  # slurmd passes none on
RANKSKEW_BIN=/opt/rankskew/bin
RANKSKEW_URL=http://127.0.0.1:9917
# shellcheck source=/dev/null
[ ! -r /etc/default/rankskew-slurm ] || . /etc/default/rankskew-slurm

said=$(timeout --kill-after=3 5 \
    "$RANKSKEW_BIN/rankskew" diagnose --exporter "$RANKSKEW_URL" --job "$SLURM_JOB_ID" 2>/dev/null)
wrong=$(printf '%s\n' "$said" | sed -n 's/^1\. //p')
[ -z "$wrong" ] || logger -t rankskew-slurm -p daemon.notice "job $SLURM_JOB_ID ended: $wrong"
exit 0
