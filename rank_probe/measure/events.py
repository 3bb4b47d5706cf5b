"""The events of a training loop: one code for each thing that the hooks record.

A hook records its event on a `tape` and returns; `transitions` defines what the events mean.
"""

# Codes of the events. ENTER and PART carry the number of their stage in the four lowest bits.
(
    ENTER,  # the user enters a stage
    PART,  # a patch sees a part of a stage begin
    LEAVE,  # what the last ENTER or PART began ends
    FETCH,  # a loader is asked for a batch
    FETCH_UNGRADED,  # ... with gradients off
    FETCHED,  # the batch is there
    ITERATED,  # the loader made its iterator
    EXHAUSTED,  # no batch: the loader reached its end, or raised
    FORWARD_BEGINS,  # the root module is called with gradients on
    FORWARD_UNGRADED,  # ... with gradients off, or in eval mode
    FORWARD_EVALUATES,  # ... with both; never a teacher's forward: DDP wraps no teacher
    FORWARD_ENDED,  # the root module returned its loss
    BACKWARD_BEGINS,
    GRADIENTS_READY,  # the last local gradient exists; the rest of backward is waiting
    BACKWARD_ENDED,
    BACKWARD_RAISED,
    OPTIMIZER_BEGINS,
    OPTIMIZER_ENDED,  # not noted if the optimizer raised
    CLOSURE_BEGINS,  # an optimizer computes its loss
    CLOSURE_ENDED,
    WAIT,  # an exposed wait for other ranks begins
    WAITED,  # it ended, and other ranks may still wait
    RELEASED,  # it ended, and all ranks continue together
    ENGINE_WAIT,  # the same three on a thread of the autograd engine
    ENGINE_WAITED,
    ENGINE_RELEASED,
    STEP,  # the user completes a step
    FINISH,  # the probe ends
    STEPS_ARE_FOUND,  # from now on steps end by themselves
    STEPS_ARE_GIVEN,  # from now on they end where the user completes them
    HAS_PEERS,  # from now on a backward waits for other ranks
    LOOP_READS_ITSELF,  # the loop has no loader: it reads its batches after the optimizer
    RESTART,  # timing starts anew
) = range(16, 16 * 34, 16)
