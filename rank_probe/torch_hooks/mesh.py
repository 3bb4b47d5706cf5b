"""Where a rank sits among data, tensor and pipeline parallel ranks."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch.distributed

from rank_probe.guest.guard import never_raise
from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches
from rank_probe.torch_hooks.dynamo import opaque
from rank_probe.torch_hooks.private import wrap

# Names of mesh dimensions in libraries. A data parallel dimension may be split in two, as in hybrid
# sharding; their coordinates are counted together.
DIMENSIONS: Final = {
    "dp": ("dp", "data", "dp_replicate", "dp_shard", "fsdp", "ddp", "replicate", "shard"),
    "tp": ("tp", "model", "tensor"),
    "pp": ("pp", "pipe", "pipeline"),
}
# Megatron-core creates process groups and no mesh: the names in its functions, by coordinate.
MEGATRON: Final = {
    "pp": "pipeline_model_parallel",
    "tp": "tensor_model_parallel",
    "dp": "data_parallel",
}


def coordinates_in(dimensions: Iterable[tuple[str, int, int]]) -> dict[str, str]:
    """Return dp, tp and pp from a mesh's *dimensions*: name, this rank's place, size.

    Unknown names are left out. Several data parallel dimensions count as one, the last one fastest.
    """
    found: dict[str, int] = {}
    for name, place, size in dimensions:
        for key, names in DIMENSIONS.items():
            if name.lower() in names:
                found[key] = found.get(key, 0) * size + place
    return {key: str(place) for key, place in found.items()}


class Coordinates:
    """Watches the creation of meshes, pipeline stages, Megatron's groups; *found* has the places.

    The first source of a coordinate wins: a mesh is created before its slices. What was created
    before `attach` is not seen, nor a mesh with unnamed dimensions.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def attach(self) -> Patches:
        """Watch from now on; `undo` the result to detach."""
        patches = Patches()
        if not torch.distributed.is_available():
            return patches
        from torch.distributed.device_mesh import DeviceMesh

        patches.wrap(DeviceMesh, "__init__", functools.partial(_then, self._see_mesh))

        def watch_stages(module: Any) -> None:
            make = functools.partial(_then, self._see_stage)
            without = "The pipeline stage of a rank is not known."
            wrap(patches, module, "_PipelineStageBase.__init__", make, without)

        def watch_megatron(module: Any) -> None:
            make = functools.partial(_then, lambda *_: self._see_megatron(module))
            wrap(patches, module, "initialize_model_parallel", make)

        patches.on_undo(when_imported("torch.distributed.pipelining.stage", watch_stages))
        patches.on_undo(when_imported("megatron.core.parallel_state", watch_megatron))
        return patches

    @never_raise
    def _see_mesh(self, mesh: Any) -> None:
        names, places = mesh.mesh_dim_names, mesh.get_coordinate()
        if names and places is not None:  # None: this rank is not in it.
            sizes = [mesh.size(index) for index in range(len(names))]
            found = coordinates_in(zip(names, places, sizes, strict=True))
            self.found = found | self.found

    @never_raise
    def _see_megatron(self, state: Any) -> None:
        for name, group in MEGATRON.items():
            rank, size = (getattr(state, f"get_{group}_{of}")() for of in ("rank", "world_size"))
            if size > 1:
                self.found = {name: str(rank)} | self.found

    @never_raise
    def _see_stage(self, stage: Any) -> None:
        # Not the stage's index: an interleaved schedule gives a rank several.
        self.found = {"pp": str(stage.group_rank)} | self.found


def _then(tell: Callable[..., object], original: Callable[..., None]) -> Any:
    def initialize(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        tell(*args[:1])

    return opaque(initialize)
