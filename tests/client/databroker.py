"""A KUKSA databroker in the test: a real gRPC server that speaks kuksa.val.v2 as published.

The messages are built here from the published names, types and numbers (eclipse-kuksa/kuksa-databroker,
proto/kuksa/val/v2, Apache-2.0) under the published package, not from the code that the client uses.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_TYPES = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": (11, _TYPES.TYPE_STRING),
    "bool": (12, _TYPES.TYPE_BOOL),
    "int32": (13, _TYPES.TYPE_SINT32),
    "int64": (14, _TYPES.TYPE_SINT64),
    "uint32": (15, _TYPES.TYPE_UINT32),
    "uint64": (16, _TYPES.TYPE_UINT64),
    "float": (17, _TYPES.TYPE_FLOAT),
    "double": (18, _TYPES.TYPE_DOUBLE),
}
_ARRAYS = {
    "string_array": (21, "StringArray", _TYPES.TYPE_STRING),
    "int32_array": (23, "Int32Array", _TYPES.TYPE_SINT32),
}


def _field(name: str, number: int, kind: int, type_name: str = "", *, many: bool = False, choice: bool = False) -> Any:
    label = _TYPES.LABEL_REPEATED if many else _TYPES.LABEL_OPTIONAL
    made = _TYPES(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
    if type_name:
        made.type_name = type_name
    if choice:
        made.oneof_index = 0
    return made


def _published() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="kuksa/val/v2/published.proto", package="kuksa.val.v2", syntax="proto3"
    )
    file.dependency.append("google/protobuf/timestamp.proto")
    nested = _TYPES.TYPE_MESSAGE
    signal = file.message_type.add(name="SignalID")
    signal.oneof_decl.add(name="signal")
    signal.field.extend(
        [
            _field("id", 1, _TYPES.TYPE_INT32, choice=True),
            _field("path", 2, _TYPES.TYPE_STRING, choice=True),
        ]
    )
    value = file.message_type.add(name="Value")
    value.oneof_decl.add(name="typed_value")
    for name, (number, kind) in _SCALARS.items():
        value.field.append(_field(name, number, kind, choice=True))
    for name, (number, array, kind) in _ARRAYS.items():
        file.message_type.add(name=array).field.append(_field("values", 1, kind, many=True))
        value.field.append(_field(name, number, nested, f".kuksa.val.v2.{array}", choice=True))
    file.message_type.add(name="Datapoint").field.extend(
        [
            _field("timestamp", 1, nested, ".google.protobuf.Timestamp"),
            _field("value", 2, nested, ".kuksa.val.v2.Value"),
        ]
    )
    file.message_type.add(name="GetValuesRequest").field.append(
        _field("signal_ids", 1, nested, ".kuksa.val.v2.SignalID", many=True)
    )
    file.message_type.add(name="GetValuesResponse").field.append(
        _field("data_points", 1, nested, ".kuksa.val.v2.Datapoint", many=True)
    )
    file.message_type.add(name="ListMetadataRequest").field.extend(
        [_field("root", 1, _TYPES.TYPE_STRING), _field("filter", 2, _TYPES.TYPE_STRING)]
    )
    file.message_type.add(name="Metadata").field.extend(
        [
            _field("path", 9, _TYPES.TYPE_STRING),
            _field("data_type", 11, _TYPES.TYPE_INT32),  # An enumeration, which has the bytes of its number.
            _field("entry_type", 12, _TYPES.TYPE_INT32),
            _field("description", 13, _TYPES.TYPE_STRING),
            _field("unit", 16, _TYPES.TYPE_STRING),
            _field("min", 18, nested, ".kuksa.val.v2.Value"),
            _field("max", 19, nested, ".kuksa.val.v2.Value"),
        ]
    )
    file.message_type.add(name="ListMetadataResponse").field.append(
        _field("metadata", 1, nested, ".kuksa.val.v2.Metadata", many=True)
    )
    assert timestamp_pb2.DESCRIPTOR.name == file.dependency[0]
    # The default pool: where the project's own client would register them, beside what our client has there.
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    names = [one.name for one in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kuksa.val.v2.{name}")) for name in names}


KUKSA = _published()


@dataclass
class FakeDatabroker:
    """What the databroker holds and how it behaves; `asked` counts calls, `refuse_first` so many are unavailable.

    `metadata` says of a path what its Metadata says, None that the databroker has no such method.
    """

    values: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)
    """Path: the arguments of its Value ({} for none) and its age in seconds."""
    token: str = ""
    refuse_first: int = 0
    delay_s: float = 0.0
    raw_answer: bytes | None = None
    asked: list[list[str]] = field(default_factory=list)
    metadata: dict[str, dict[str, Any]] | None = field(default_factory=dict)
    described: list[str] = field(default_factory=list)
    published: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)
    """Path: the arguments of its Value and the time that the databroker gave it, Unix seconds."""

    def publish(self, path: str, value: dict[str, Any], now: float, *, continuous: bool = False) -> None:
        """Take a value as the databroker does: one that equals the present one is dropped, with its time, unless the
        path's change type is continuous (broker.rs, `diff`).
        """
        if continuous or path not in self.published or self.published[path][0] != value:
            self.published[path] = (value, now)

    async def list_metadata(self, request: bytes, context: Any) -> bytes:
        path = KUKSA["ListMetadataRequest"].FromString(request).root
        self.described.append(path)
        if self.metadata is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        if path not in self.values and path not in self.published:
            await context.abort(grpc.StatusCode.NOT_FOUND, "Path not found")
        said = dict((self.metadata or {}).get(path, {}))
        for name in ("min", "max"):
            if name in said:
                said[name] = KUKSA["Value"](**said[name])
        return bytes(KUKSA["ListMetadataResponse"](metadata=[KUKSA["Metadata"](path=path, **said)]).SerializeToString())

    async def get_values(self, request: bytes, context: Any) -> bytes:
        query = KUKSA["GetValuesRequest"].FromString(request)
        paths = [one.path for one in query.signal_ids]
        self.asked.append(paths)
        await asyncio.sleep(self.delay_s)
        if len(self.asked) <= self.refuse_first:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "starting: token s3cret")
        if self.token and ("authorization", f"Bearer {self.token}") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "bad token s3cret")
        if not set(paths) <= self.values.keys() | self.published.keys():
            await context.abort(grpc.StatusCode.NOT_FOUND, "Path not found")
        return self.raw_answer if self.raw_answer is not None else self._answer(paths)

    def _answer(self, paths: list[str]) -> bytes:
        answer = KUKSA["GetValuesResponse"]()
        for path in paths:
            point = answer.data_points.add()
            if path in self.published:
                arguments, moment = self.published[path]
            else:
                arguments, age_s = self.values[path]
                moment = time.time() - age_s
            if arguments:
                point.value.CopyFrom(KUKSA["Value"](**arguments))
                point.timestamp.FromNanoseconds(int(moment * 1e9))
        return bytes(answer.SerializeToString())


@asynccontextmanager
async def databroker(
    fake: FakeDatabroker, credentials: grpc.ServerCredentials | None = None, *, port: int = 0
) -> AsyncIterator[str]:
    """Run it on a port of this machine, 0 for a free one; give its address."""
    server = grpc.aio.server()
    methods = {
        "GetValues": grpc.unary_unary_rpc_method_handler(fake.get_values),
        "ListMetadata": grpc.unary_unary_rpc_method_handler(fake.list_metadata),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kuksa.val.v2.VAL", methods),))
    port = (
        server.add_insecure_port(f"127.0.0.1:{port}")
        if credentials is None
        else server.add_secure_port(f"127.0.0.1:{port}", credentials)
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
