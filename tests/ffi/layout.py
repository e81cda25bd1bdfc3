# SPDX-License-Identifier: MIT
"""How ctypes lays out what the Python package declares, in the form of header_facts.sh: layout.py _abi.py"""

import ctypes
import importlib.util
import sys

KINDS = {ctypes.c_uint32: "u32", ctypes.c_int32: "i32", ctypes.c_uint64: "u64", ctypes.c_size_t: "u64",
         ctypes.c_float: "f32", ctypes.c_double: "f64", None: "void"}


def kind(of):
    if of is not None and issubclass(of, ctypes.Array):
        return "a"
    return KINDS.get(of, "p")


def signature(what, name, result, arguments):
    print(f"{what} {name} {kind(result)}({','.join(map(kind, arguments))})")


spec = importlib.util.spec_from_file_location("_abi", sys.argv[1])
abi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abi)
for name, value in vars(abi).items():
    if name.startswith("SHARPI_") and not name.startswith("SHARPI_VERSION"):
        print("constant", name, value)
    elif not name.startswith("sharpi_"):
        continue
    elif issubclass(value, ctypes.Structure):
        print("struct", name, ctypes.sizeof(value))
        for field, of in value._fields_:
            at = getattr(value, field)
            print("field", f"{name}.{field}", at.offset, at.size, kind(of))
    else:
        signature("callback", name, value._restype_, value._argtypes_)
for name, (result, arguments) in abi.FUNCTIONS.items():
    signature("function", name, result, arguments)
