"""Vectors of eight 64-bit words, the only type of value in the compiled kernel, and its only generated code.

For a reader who knows neither LLVM nor Numba. A modern processor adds, shifts or multiplies eight 64-bit numbers with
one instruction. Python has no expression for that, and Numba, which compiles Python functions to machine code, has no
such type. This module adds one type to Numba, `Lanes`: eight unsigned words modulo 2**64, lane 0 to lane 7, one for
each report. Every operation below works on each lane separately; `gather`, `scatter` and `load_transposed` only move
whole words between lanes and rows of memory.

Numba compiles with LLVM, which has vectors as a type, written `<8 x i64>`. The second half of this file defines, for
each operation, its instruction in LLVM's language ("xor of two vectors"). LLVM then selects the instructions of the
machine: one of 512 bits (AVX-512), two of 256 (AVX2), four of 128 (NEON). Two operations are an instruction that only
some machines have, `multiply_add_low` and `multiply_add_high`; code that uses them checks `HAS_MULTIPLY_ADD` and has an
alternative.

The other modules of this package are therefore ordinary code: `a ^ b` computes eight words. docs/decisions/0009 has the
measured cost of loops over arrays of eight numbers, which would need no generated code. Outside compiled code every
function of this module raises TypeError.
"""

import operator
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fleetcount_kernel.compiling import target_features

WIDTH: Final = 8
"""Lanes of a vector: the number of reports that are computed together."""

HAS_MULTIPLY_ADD: Final = {"+avx512f", "+avx512ifma"} <= set(target_features().split(","))
"""Whether the target machine multiplies 52-bit numbers and adds the product with one instruction."""

Words = NDArray[np.uint64]
"""Memory in two dimensions, C order. With eight columns each row is a vector; otherwise each row is a report."""


class Lanes(Protocol):
    """Eight words modulo 2**64, one for each report; the operators work lane by lane."""

    def __add__(self, other: "Lanes", /) -> "Lanes": ...
    def __sub__(self, other: "Lanes", /) -> "Lanes": ...
    def __and__(self, other: "Lanes", /) -> "Lanes": ...
    def __or__(self, other: "Lanes", /) -> "Lanes": ...
    def __xor__(self, other: "Lanes", /) -> "Lanes": ...
    def __invert__(self) -> "Lanes": ...


def splat(word: np.uint64) -> Lanes:
    """Return the vector with `word` in every lane."""
    raise _not_compiled()


def load(rows: Words, row: int) -> Lanes:
    """Return row `row` of memory with eight columns; no function here checks an index, the caller must."""
    raise _not_compiled()


def store(rows: Words, row: int, value: Lanes) -> None:
    """Write a vector to row `row` of memory with eight columns."""
    raise _not_compiled()


def gather(records: Words, first: int, column: int) -> Lanes:
    """Return word `column` of the eight records `first` and on, one a lane."""
    raise _not_compiled()


def scatter(records: Words, first: int, column: int, value: Lanes) -> None:
    """Write lane i to word `column` of record `first` + i."""
    raise _not_compiled()


def load_transposed(records: Words, first: int, column: int, rows: Words, row: int) -> None:
    """Write words `column` to `column` + 7 of eight records to rows `row` to `row` + 7: eight times `gather`."""
    raise _not_compiled()


def shift_left(value: Lanes, bits: int) -> Lanes:
    """Return the words times 2**bits, `bits` from 0 to 63."""
    raise _not_compiled()


def shift_right(value: Lanes, bits: int) -> Lanes:
    """Return the words divided by 2**bits, rounded down, `bits` from 0 to 63."""
    raise _not_compiled()


def rotate_left(value: Lanes, bits: int) -> Lanes:
    """Return the words rotated to the left, `bits` from 0 to 63."""
    raise _not_compiled()


def multiply_low(left: Lanes, right: Lanes) -> Lanes:
    """Return the full product of the low 32 bits of each word; the high 32 bits are ignored."""
    raise _not_compiled()


def multiply_add_low(total: Lanes, left: Lanes, right: Lanes) -> Lanes:
    """Return `total` plus the low 52 bits of the product of the low 52 bits of two words; if `HAS_MULTIPLY_ADD`."""
    raise _not_compiled()


def multiply_add_high(total: Lanes, left: Lanes, right: Lanes) -> Lanes:
    """Return `total` plus the high 52 bits of that 104-bit product; if `HAS_MULTIPLY_ADD`."""
    raise _not_compiled()


def larger(left: Lanes, right: Lanes) -> Lanes:
    """Return the larger of the two words."""
    raise _not_compiled()


def select_less(left: Lanes, right: Lanes, then: Lanes, otherwise: Lanes) -> Lanes:
    """Return `then` where left < right (unsigned) and `otherwise` elsewhere, without a branch."""
    raise _not_compiled()


def _not_compiled() -> TypeError:
    return TypeError("vectors exist in compiled code only")


# The definitions for Numba and LLVM, whose interfaces have no type hints.

_ir: Any = import_module("llvmlite.ir")
_types: Any = import_module("numba").types
_cgutils: Any = import_module("numba.core.cgutils")
_templates: Any = import_module("numba.core.typing.templates")
_extending: Any = import_module("numba.extending")

_WORD: Final = _ir.IntType(64)
_PLACE: Final = _ir.IntType(32)
_VECTOR: Final = _ir.VectorType(_WORD, WIDTH)
_UNDEFINED: Final = _ir.Constant(_VECTOR, _ir.Undefined)


class _LanesType(_types.Type):  # type: ignore[misc]  # its base is Numba's
    """Numba's name for a vector."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES: Final = _LanesType()


def _vector_model(manager: Any, numba_type: Any) -> Any:
    return _extending.models.PrimitiveModel(manager, numba_type, _VECTOR)


_extending.register_model(_LanesType)(_vector_model)


def _register(symbol: Callable[..., Any], result: Any, parameters: tuple[Any, ...], emit: Callable[..., Any]) -> None:
    """Register `symbol` with Numba: `emit(builder, *arguments)` adds LLVM's instructions and returns the value.

    A parameter "words" is a two-dimensional array of unsigned 64-bit words in C order; `emit` gets Numba's view of the
    array, with its address and its shape.
    """

    def typed(_template: Any, arguments: tuple[Any, ...], _keywords: Any) -> Any:
        if len(arguments) != len(parameters):
            return None
        chosen = [have if wanted == "words" else wanted for have, wanted in zip(arguments, parameters, strict=True)]
        for have, wanted in zip(arguments, parameters, strict=True):
            if wanted == "words" and not _is_words(have):
                return None
        return _templates.signature(result, *chosen)

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = [
            context.make_array(numba_type)(context, builder, value=value) if wanted == "words" else value
            for value, numba_type, wanted in zip(arguments, signature.args, parameters, strict=True)
        ]
        emitted = emit(builder, *values)
        return context.get_dummy_value() if emitted is None else emitted

    template = type(f"_{symbol.__name__}", (_templates.AbstractTemplate,), {"generic": typed})
    _templates.infer_global(symbol)(template)
    classes = [_types.Array if wanted == "words" else wanted for wanted in parameters]
    _extending.lower_builtin(symbol, *classes)(lower)


def _is_words(numba_type: Any) -> bool:
    if not isinstance(numba_type, _types.Array):
        return False
    return (numba_type.ndim, numba_type.layout, numba_type.dtype) == (2, "C", _types.uint64)


def _constant(word: int) -> Any:
    return _ir.Constant(_VECTOR, [word] * WIDTH)


def _shuffle(builder: Any, left: Any, right: Any, places: list[int]) -> Any:
    """Return the chosen words of two vectors: places 0..7 are those of `left`, 8..15 of `right`."""
    return builder.shuffle_vector(left, right, _ir.Constant(_ir.VectorType(_PLACE, WIDTH), places))


def _broadcast(builder: Any, word: Any) -> Any:
    first = builder.insert_element(_UNDEFINED, word, _ir.Constant(_PLACE, 0))
    return _shuffle(builder, first, _UNDEFINED, [0] * WIDTH)


def _row_address(builder: Any, rows: Any, row: Any) -> Any:
    return builder.gep(builder.bitcast(rows.data, _VECTOR.as_pointer()), [row])


def _word_address(builder: Any, records: Any, record: Any, column: Any) -> Any:
    """Return the address of one word of one record; records are rows in C order."""
    columns = builder.extract_value(records.shape, 1)
    return builder.gep(records.data, [builder.add(builder.mul(record, columns), column)])


def _read(builder: Any, address: Any) -> Any:
    # NumPy guarantees an alignment of eight bytes; without this line LLVM would assume the vector's own 64.
    value = builder.load(address)
    value.align = 8
    return value


def _write(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, address).align = 8


def _load(builder: Any, rows: Any, row: Any) -> Any:
    return _read(builder, _row_address(builder, rows, row))


def _store(builder: Any, rows: Any, row: Any, value: Any) -> None:
    _write(builder, _row_address(builder, rows, row), value)


def _gather(builder: Any, records: Any, first: Any, column: Any) -> Any:
    value = _UNDEFINED
    for lane in range(WIDTH):
        record = builder.add(first, _ir.Constant(_WORD, lane))
        word = builder.load(_word_address(builder, records, record, column))
        value = builder.insert_element(value, word, _ir.Constant(_PLACE, lane))
    return value


def _scatter(builder: Any, records: Any, first: Any, column: Any, value: Any) -> None:
    for lane in range(WIDTH):
        record = builder.add(first, _ir.Constant(_WORD, lane))
        word = builder.extract_element(value, _ir.Constant(_PLACE, lane))
        builder.store(word, _word_address(builder, records, record, column))


def _load_transposed(builder: Any, records: Any, first: Any, column: Any, rows: Any, row: Any) -> None:
    """Transpose eight by eight words in three steps: exchange blocks of 4, of 2 and of 1 across the diagonal."""
    vectors: list[Any] = []
    for lane in range(WIDTH):
        address = _word_address(builder, records, builder.add(first, _ir.Constant(_WORD, lane)), column)
        vectors.append(_read(builder, builder.bitcast(address, _VECTOR.as_pointer())))
    for block in (4, 2, 1):
        upper = [place if not place & block else place - block + WIDTH for place in range(WIDTH)]
        lower = [place + block if not place & block else place + WIDTH for place in range(WIDTH)]
        for index in range(WIDTH):
            if not index & block:
                a, b = vectors[index], vectors[index + block]
                vectors[index] = _shuffle(builder, a, b, upper)
                vectors[index + block] = _shuffle(builder, a, b, lower)
    for index, vector in enumerate(vectors):
        _store(builder, rows, builder.add(row, _ir.Constant(_WORD, index)), vector)


def _invert(builder: Any, value: Any) -> Any:
    return builder.xor(value, _constant((1 << 64) - 1))


def _operator(name: str) -> Callable[[Any, Any, Any], Any]:
    """Return the emitter of LLVM's instruction of that name."""

    def emit(builder: Any, left: Any, right: Any) -> Any:
        return getattr(builder, name)(left, right)

    return emit


def _shift_left(builder: Any, value: Any, bits: Any) -> Any:
    return builder.shl(value, _broadcast(builder, bits))


def _shift_right(builder: Any, value: Any, bits: Any) -> Any:
    return builder.lshr(value, _broadcast(builder, bits))


def _rotate_left(builder: Any, value: Any, bits: Any) -> Any:
    # LLVM's funnel shift of a vector with itself is a rotation, one instruction on processors that have it.
    kind = _ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
    rotate = _cgutils.get_or_insert_function(builder.module, kind, f"llvm.fshl.v{WIDTH}i64")
    return builder.call(rotate, [value, value, _broadcast(builder, bits)])


def _multiply_low(builder: Any, left: Any, right: Any) -> Any:
    # The masks cost nothing: LLVM drops them, because a 32-by-32-bit multiplication ignores the upper halves.
    low = _constant((1 << 32) - 1)
    return builder.mul(builder.and_(left, low), builder.and_(right, low))


def _multiply_add(part: str) -> Callable[[Any, Any, Any, Any], Any]:
    """Return the emitter of the instruction that adds the part "l" or "h" of a product of 52-bit numbers."""

    def emit(builder: Any, total: Any, left: Any, right: Any) -> Any:
        if not HAS_MULTIPLY_ADD:
            # LLVM would end the process on an instruction that the target does not have.
            raise TypeError("this machine has no multiplication of 52-bit numbers")
        kind = _ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
        name = f"llvm.x86.avx512.vpmadd52{part}.uq.512"
        return builder.call(_cgutils.get_or_insert_function(builder.module, kind, name), [total, left, right])

    return emit


def _larger(builder: Any, left: Any, right: Any) -> Any:
    return builder.select(builder.icmp_unsigned(">", left, right), left, right)


def _select_less(builder: Any, left: Any, right: Any, then: Any, otherwise: Any) -> Any:
    return builder.select(builder.icmp_unsigned("<", left, right), then, otherwise)


def _register_all() -> None:
    pair, index = (_LANES, _LANES), _types.intp
    sums = {operator.add: "add", operator.iadd: "add", operator.sub: "sub"}
    for symbol, name in {**sums, operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}.items():
        _register(symbol, _LANES, pair, _operator(name))
    _register(operator.invert, _LANES, (_LANES,), _invert)
    _register(splat, _LANES, (_types.uint64,), _broadcast)
    _register(load, _LANES, ("words", index), _load)
    _register(store, _types.none, ("words", index, _LANES), _store)
    _register(gather, _LANES, ("words", index, index), _gather)
    _register(scatter, _types.none, ("words", index, index, _LANES), _scatter)
    _register(load_transposed, _types.none, ("words", index, index, "words", index), _load_transposed)
    for shift, emit in ((shift_left, _shift_left), (shift_right, _shift_right), (rotate_left, _rotate_left)):
        _register(shift, _LANES, (_LANES, index), emit)
    _register(multiply_low, _LANES, pair, _multiply_low)
    _register(multiply_add_low, _LANES, (_LANES, *pair), _multiply_add("l"))
    _register(multiply_add_high, _LANES, (_LANES, *pair), _multiply_add("h"))
    _register(larger, _LANES, pair, _larger)
    _register(select_less, _LANES, (*pair, *pair), _select_less)


_register_all()
