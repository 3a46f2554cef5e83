"""What can go wrong inside a training process, stated as facts. The docstring is the message of a bare error."""

from __future__ import annotations


class EverstepError(RuntimeError):
    """Something in Everstep's runtime failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__class__.__doc__ or "").strip())


class UnsupportedTorch(EverstepError):
    """This version of torch lacks a private attribute on which in-place recovery relies."""


class NotInitialised(EverstepError):
    """everstep.init() has not been called in this process."""


class NotInAJob(EverstepError):
    """WORLD_SIZE is more than 1, but EVERSTEP_SOCKET is not set: start the ranks with `everstep job submit`, not with torchrun."""


class CollectiveFailed(EverstepError):
    """A collective of this generation failed; a peer is gone or its connection broke."""


class GroupRetired(EverstepError):
    """This process group belongs to an older generation. A model wrapped in DistributedDataParallel must be the one in everstep.State."""


class StateLost(EverstepError):
    """No living process holds the state of this job any more; training never starts again from the initial weights by itself."""


class StateMismatch(EverstepError):
    """Two processes of the job hold states of different structure; they don't run the same script with the same arguments."""


class UnsupportedWrapper(EverstepError):
    """DistributedDataParallel(static_graph=True) lays its buckets out once and cannot change its group; leave static_graph off."""


class ShardsDoNotFit(EverstepError):
    """The ranks of this generation cannot hold the shards that run.mesh() asks for."""


class TransferFailed(EverstepError):
    """The state could not be read from a peer."""


class StepNotCommitted(EverstepError):
    """The body of the loop ended without `with run.update(step): ...`; the step would be trained again for ever."""


class UnsteadyData(EverstepError):
    """Reading the data draws random numbers that training draws too: with workers their order would be left to chance. Leave workers out, or draw from a generator seeded by the sample's index."""


class RendezvousRefused(EverstepError):
    """The rendezvous server does not accept this job, generation or token."""


class RendezvousFailed(EverstepError):
    """The rendezvous server cannot be reached or did not answer in time."""


class SaveRefused(EverstepError):
    """No tier has room for this save; it was not written."""


class SaveFailed(EverstepError):
    """A shard could not be written; the step does not exist in any tier, and the next save is not concerned."""


class TierAway(EverstepError):
    """The memory tier of this node does not answer; saves go to the object store until it does."""


class NoTier(TierAway):
    """This node has no memory tier; TieredStorageConfig of its cluster switches it on."""


class CheckpointMissing(EverstepError):
    """There is no complete checkpoint of this namespace in any tier."""


class CheckpointUnreadable(EverstepError):
    """No copy of a shard, in memory, at a peer or in the object store, could be read and matched its checksum."""


class CheckpointMismatch(EverstepError):
    """A checkpoint does not hold what was asked of it."""


class LossStopped(EverstepError):
    """The loss was no number, or far from those before it, and the loss policy stops training then."""


class CheckpointsPoisoned(EverstepError):
    """Training that goes on from these checkpoints fails soon after each load, in the same way."""
