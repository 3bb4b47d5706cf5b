"""Time the stages of a torch training loop and tell the node's exporter which rank is late.

Without changing the code: `torchrun ... -m rank_probe train.py`. By hand:

    import rank_probe as probe

    probe.start()
    for batch in probe.wrap(loader):
        with probe.stage("forward"):
            loss = model(batch)
        loss.backward()  # timed automatically, with the wait for other ranks split out
        with probe.stage("optimizer"):
            optimizer.step()
        probe.step()

A guest: nothing here raises into training, synchronises a device or blocks on I/O. Before `start`,
and with RANK_PROBE=0 in the environment, every call is a no-op.
"""

from rank_probe.api import annotate, count, finish, stage, start, step, wrap
from rank_probe.version import __version__

__all__ = ["__version__", "annotate", "count", "finish", "stage", "start", "step", "wrap"]
