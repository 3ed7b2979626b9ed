"""The manifest of a checkpoint step, `manifest.json`: the leaves of its state, and size and sha256 of every file.

Orbax does not protect the arrays' bytes with checksums: of 100 single flipped bits in a saved step, a restore detected
one. So the manifest is written after all other bytes are on the disk. A step counts as saved once it has a manifest,
and as good if all its files agree with it. This module does not use Orbax.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.files import file_digest, read_file, sync, write_whole
from bert_jax.training.checkpoint.hashing import Sums, files_in, name_in


class LeafType(NamedTuple):
    """Shape and dtype of one array, as recorded in a manifest; prints as `float32[2,3]`."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


MANIFEST = "manifest.json"
VERSION = 1
_NO_HASH = "0" * 64


class ManifestError(ValueError):
    """A step's manifest is missing, unreadable or changed; one line that says which."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a step.

    Attributes:
      step: The number of the step, which is also the name of its directory.
      metadata: The metadata given to `Checkpoints.save`.
      tree: Path of each array -> its shape and dtype.
      files: Path of each file in the step, except the manifest itself -> its sha256 (hex) and size in bytes.
      extra: Whether it was saved outside the run's schedule; see `Checkpoints.save`.
    """

    step: int
    metadata: dict[str, Any]
    tree: dict[str, LeafType]
    files: Sums
    extra: bool = False


def write_manifest(
    directory: epath.Path,
    *,
    step: int,
    metadata: Mapping[str, Any],
    tree: Mapping[str, LeafType],
    files: Sums,
    extra: bool = False,
) -> None:
    """Writes the manifest of a finished step, whose files have been synced to disk.

    After a power cut the step either has its manifest, and then all files listed there are on the disk, or it has none.

    Args:
      directory: The step's.
      step, metadata, tree, extra: See `Manifest`.
      files: From `hash_and_sync`, of all processes.

    Raises:
      OSError: The manifest or a directory above it could not be written or synced; the step then has no manifest.
    """
    manifest = Manifest(step, dict(metadata), dict(tree), dict(sorted(files.items())), extra)
    # The step's name is an entry of its parent directory, and that directory's name an entry of the next.
    sync(directory.parent)
    sync(directory.parent.parent)
    try:
        write_whole(directory / MANIFEST, _encode(manifest))
    except OSError:  # may come from the fsync of the directory, when the manifest has its name already
        with contextlib.suppress(OSError):
            (directory / MANIFEST).unlink(missing_ok=True)
        raise


def read_manifest(directory: epath.Path) -> Manifest:
    """Reads the manifest of a step and checks the sha256 of its content.

    Raises:
      ManifestError: It is missing, cannot be read, has a newer version, or was changed.
    """
    path = directory / MANIFEST
    try:
        content = read_file(path)
    except OSError as error:
        raise ManifestError(f"{MANIFEST}: cannot be read ({error})") from error
    try:
        record = json.loads(content)
        claimed = record["sha256"]
        actual = _content_hash(content, claimed)
        if actual != claimed:
            raise ManifestError(f"{MANIFEST}: sha256 {actual[:16]}… found, {claimed[:16]}… expected")
        if record["version"] > VERSION:
            raise ManifestError(f"{MANIFEST}: version {record['version']} found; this bert_jax reads up to {VERSION}")
        if str(record["step"]) != directory.name:
            raise ManifestError(f"{MANIFEST}: belongs to step {record['step']}")
        return Manifest(
            step=record["step"],
            metadata=record["metadata"],
            tree={name: LeafType(tuple(leaf["shape"]), leaf["dtype"]) for name, leaf in record["tree"].items()},
            files={name: (file["sha256"], file["bytes"]) for name, file in record["files"].items()},
            extra=bool(record.get("extra", False)),
        )
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{MANIFEST}: is not a manifest of a checkpoint ({type(error).__name__})") from error


def find_damage(directory: epath.Path, manifest: Manifest) -> list[str]:
    """One line for each file that differs from the manifest, with what was found and expected; empty = good."""
    problems = []
    present = {name_in(path, directory): path for path in files_in(directory)}
    for name, (sha256, size) in manifest.files.items():
        if name not in present:
            problems.append(f"{name}: missing, {size} bytes expected")
            continue
        try:
            found_sha256, found_size = file_digest(present[name])
        except OSError as error:
            problems.append(f"{name}: cannot be read ({error})")
            continue
        if found_size != size:
            problems.append(f"{name}: {found_size} bytes found, {size} expected")
        elif found_sha256 != sha256:
            problems.append(f"{name}: sha256 {found_sha256[:16]}… found, {sha256[:16]}… expected")
    unknown = sorted(set(present) - set(manifest.files) - {MANIFEST})
    return problems + [f"{name}: found, but not part of the checkpoint" for name in unknown]


def _encode(manifest: Manifest) -> bytes:
    record = {
        "format": "bert_jax checkpoint",
        "version": VERSION,
        "step": manifest.step,
        "sha256": _NO_HASH,
        "extra": manifest.extra,
        "metadata": manifest.metadata,
        "files": {name: {"sha256": sha256, "bytes": size} for name, (sha256, size) in manifest.files.items()},
        "tree": {name: {"shape": leaf.shape, "dtype": leaf.dtype} for name, leaf in manifest.tree.items()},
    }
    content = (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()
    sha256 = hashlib.sha256(content).hexdigest()
    return content.replace(_hash_field(_NO_HASH), _hash_field(sha256), 1)


def _content_hash(content: bytes, claimed: str) -> str:
    """sha256 of the manifest's bytes, with zeros in place of its own hash, so that it covers every byte of the file."""
    return hashlib.sha256(content.replace(_hash_field(claimed), _hash_field(_NO_HASH), 1)).hexdigest()


def _hash_field(sha256: str) -> bytes:
    return f'"sha256": "{sha256}"'.encode()


def flatten(tree: Any) -> dict[str, Any]:
    """The leaves of any pytree by path, such as `params/bert/pooler/kernel`, in the tree's order.

    A path has dictionary keys, field names and positions, but not the containers' classes, so a state can be read into
    other classes with the same names.

    Raises:
      ValueError: Two leaves have the same path, or a key contains "/".
    """
    leaves: dict[str, Any] = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        keys = tuple(jax.tree_util.keystr((key,), simple=True) for key in key_path)
        path = "/".join(keys)
        if path in leaves or any("/" in key or not key for key in keys) or not keys:
            raise ValueError(f"the state has no unambiguous path for the leaf {keys}")
        leaves[path] = leaf
    return leaves


def leaf_types(leaves: Mapping[str, Any]) -> dict[str, LeafType]:
    """Shape and dtype of every leaf (JAX or NumPy arrays, or `jax.ShapeDtypeStruct`).

    Raises:
      TypeError: A leaf is not an array, or is a typed random key (keys are derived from the step, not stored).
      ValueError: An array has no elements (Orbax cannot save it).
    """
    types = {}
    for path, leaf in leaves.items():
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
            raise TypeError(f"{path} is a {type(leaf).__name__}: a state holds arrays only")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(f"{path} is a {leaf.dtype}: store jax.random.key_data of it, or derive it from the step")
        if 0 in leaf.shape:
            raise ValueError(f"{path} has the shape {leaf.shape}: an array without elements cannot be saved")
        types[path] = LeafType(tuple(leaf.shape), str(np.dtype(leaf.dtype)))
    return types


def differences(found: Mapping[str, LeafType], wanted: Mapping[str, LeafType], *, partial: bool) -> list[str]:
    """One line for each difference between `found` (a checkpoint) and `wanted` (a target), in the target's order.

    With `partial` the checkpoint may contain more than the target.
    """
    lines = []
    for path, leaf in wanted.items():
        if path not in found:
            lines.append(f"{path}: not in the checkpoint, {leaf} wanted")
        elif found[path] != leaf:
            lines.append(f"{path}: {found[path]} in the checkpoint, {leaf} wanted")
    if not partial:
        lines += [f"{path}: {leaf} in the checkpoint, not wanted" for path, leaf in found.items() if path not in wanted]
    return lines


def find_non_finite(leaves: Mapping[str, Any]) -> list[str]:
    """Paths of the leaves that contain a NaN or an infinity.

    It costs one reduction on the devices and one small transfer for each group of leaves on the same devices, because
    one program runs on one set of devices.
    """
    groups: dict[Any, list[str]] = {}
    bad = set()
    for path, leaf in leaves.items():
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        if isinstance(leaf, jax.Array):
            groups.setdefault(_replicated(leaf.sharding), []).append(path)
        elif not np.isfinite(leaf).all():
            bad.add(path)
    for sharding, paths in groups.items():
        finite = np.asarray(_all_finite(sharding)([leaves[path] for path in paths]))
        bad.update(path for path, good in zip(paths, finite, strict=True) if not good)
    return [path for path in leaves if path in bad]


def _replicated(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    # The result is on every device, so that each process can read it.
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return sharding


@lru_cache(maxsize=16)
def _all_finite(sharding: jax.sharding.Sharding):
    return jax.jit(lambda arrays: jnp.stack([jnp.isfinite(array).all() for array in arrays]), out_shardings=sharding)
