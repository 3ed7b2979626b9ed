"""TensorFlow's tensor_bundle.proto as Google's protobuf library builds it from its definition."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboardX.proto import tensor_shape_pb2, versions_pb2

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
