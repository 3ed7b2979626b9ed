"""TensorFlow's tensor_bundle.proto, built by Google's protobuf library, and checkpoints put together with it."""

from pathlib import Path

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bert_jax.formats.tensorflow.table import masked_crc32c, write_table
from tests.formats.tensorflow.tensorboard import part

tensor_shape_pb2, types_pb2, versions_pb2 = (
    part(f"proto.{name}_pb2") for name in ("tensor_shape", "types", "versions")
)

DTYPES = {
    "float32": types_pb2.DT_FLOAT, "float64": types_pb2.DT_DOUBLE, "float16": types_pb2.DT_HALF,
    "bfloat16": types_pb2.DT_BFLOAT16, "int8": types_pb2.DT_INT8, "int16": types_pb2.DT_INT16,
    "int32": types_pb2.DT_INT32, "int64": types_pb2.DT_INT64, "uint8": types_pb2.DT_UINT8,
    "uint16": types_pb2.DT_UINT16, "bool": types_pb2.DT_BOOL, "complex64": types_pb2.DT_COMPLEX64,
    "complex128": types_pb2.DT_COMPLEX128,
}  # fmt: skip

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {"int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64, "fixed32": _Field.TYPE_FIXED32}


def _build():
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="tensor_bundle.proto", package="bundle", syntax="proto3")
    for neighbour in (tensor_shape_pb2, versions_pb2):
        copy = descriptor_pb2.FileDescriptorProto()
        neighbour.DESCRIPTOR.CopyToProto(copy)
        pool.Add(copy)
        file.dependency.append(copy.name)
    shape, version = tensor_shape_pb2.TensorShapeProto.DESCRIPTOR, versions_pb2.VersionDef.DESCRIPTOR

    def message(name: str, *fields: tuple[str, int, str]):
        proto = file.message_type.add(name=name)
        for field, number, kind in fields:
            repeated = kind.startswith("repeated ")
            kind = kind.removeprefix("repeated ")
            added = proto.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if repeated:
                added.label = _Field.LABEL_REPEATED
            if kind in _TYPES:
                added.type = _TYPES[kind]
            else:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{kind}"

    # core/protobuf/tensor_bundle.proto and core/framework/tensor_slice.proto; enums are int32 on the wire
    message("Extent", ("start", 1, "int64"), ("length", 2, "int64"))
    extent = file.message_type[0]
    extent.oneof_decl.add(name="has_length")
    extent.field[1].oneof_index = 0
    message("TensorSliceProto", ("extent", 1, "repeated bundle.Extent"))
    message(
        "BundleHeaderProto", ("num_shards", 1, "int32"), ("endianness", 2, "int32"), ("version", 3, version.full_name)
    )
    message(
        "BundleEntryProto",
        ("dtype", 1, "int32"),
        ("shape", 2, shape.full_name),
        ("shard_id", 3, "int32"),
        ("offset", 4, "int64"),
        ("size", 5, "int64"),
        ("crc32c", 6, "fixed32"),
        ("slices", 7, "repeated bundle.TensorSliceProto"),
    )
    pool.Add(file)
    names = ("BundleHeaderProto", "BundleEntryProto")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bundle.{name}")) for name in names]


BundleHeaderProto, BundleEntryProto = _build()


def proto(array: np.ndarray, offset: int = 0, shard: int = 0, dtype: int | None = None, **fields):
    """BundleEntryProto of an array's bytes as they are."""
    octets = array.tobytes()
    entry = BundleEntryProto(dtype=DTYPES[array.dtype.name] if dtype is None else dtype, shard_id=shard, offset=offset)
    entry.size, entry.crc32c = len(octets), masked_crc32c(octets)
    for size in array.shape:
        entry.shape.dim.add(size=size)
    for name, value in fields.items():
        setattr(entry, name, value)
    return entry


def write_by_hand(prefix: Path, entries: dict, shards: list[bytes], header=None) -> Path:
    """A checkpoint of these protos and data files."""
    header = header or BundleHeaderProto(num_shards=len(shards))
    pairs = {b"": header} | {key if isinstance(key, bytes) else key.encode(): value for key, value in entries.items()}
    data = {key: value if isinstance(value, bytes) else value.SerializeToString() for key, value in pairs.items()}
    prefix.with_name(prefix.name + ".index").write_bytes(write_table(sorted(data.items())))
    for number, content in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{len(shards):05d}").write_bytes(content)
    return prefix
