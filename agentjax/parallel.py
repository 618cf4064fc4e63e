"""Data parallelism: the one place that names a mesh.

    mesh = make_mesh(8)
    step = train.make_step(policy, env, method, config, shard=shard_rows(mesh))
    state, reference = replicate(mesh, (state, reference))
    state, metrics = jax.jit(step, donate_argnums=0)(state, reference)

Rows of a batch are spread over the axis `data`; parameters and optimiser are on every device, and the compiler adds the
sums over devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA = "data"

Tree = TypeVar("Tree")


def make_mesh(data: int = 1) -> Mesh:
    """A mesh of the first `data` devices. Raises ValueError that lists the devices if there are fewer."""
    devices = jax.devices()
    if not 1 <= data <= len(devices):
        raise ValueError(
            f"data={data} asks for {data} devices, there are {len(devices)}: {', '.join(str(d) for d in devices)}"
        )
    return jax.make_mesh((data,), (DATA,), axis_types=(AxisType.Auto,), devices=devices[:data])


def shard_rows(mesh: Mesh) -> Callable[[Tree], Tree]:
    """A function for use inside jit: spreads the first axis of every array over the mesh.

    Arrays without axes, and those whose first axis the devices do not divide, stay where the compiler puts them.
    """
    rows = NamedSharding(mesh, PartitionSpec(DATA))

    def spread(x: jax.Array) -> jax.Array:
        fits = x.ndim > 0 and x.shape[0] % mesh.size == 0
        return jax.lax.with_sharding_constraint(x, rows) if fits else x

    return lambda tree: jax.tree.map(spread, tree)


def replicate(mesh: Mesh, tree: Tree) -> Tree:
    """The tree with every array on all devices of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
