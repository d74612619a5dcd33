"""Tessera's C interface (include/tessera/capi.h) on PyTorch's tensors, on the CPU and on GPUs, without copies.

A call is prepared once, with all its structs, and then costs nothing but the C function:

    tessera = Tessera("build/release/lib/libtessera.so")
    call = tessera.forward(q, k, v, out, lse, causal=True, threads=2)  # tensors are (B, H, N, D), any strides
    call()
"""

import ctypes
import os
import shutil
import tempfile
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p, sizeof

FORWARD, BACKWARD = 0, 1
DTYPES = {"torch.float64": 0, "torch.float32": 1, "torch.float16": 2, "torch.bfloat16": 3, "torch.bool": 4}


class Device(Structure):
    _fields_ = [("type", c_int32), ("index", c_int32)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("read_only", c_int32),
        ("shape", c_int64 * 4),
        ("strides", c_int64 * 4),
        ("device", Device),
    ]


class Versioned(Structure):
    """A struct that starts with its own size; fields that are not given are zero."""

    def __init__(self, **fields):
        super().__init__(struct_size=sizeof(type(self)), **fields)


class BlockLayout(Versioned):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("q_length", "k_length", "block_q", "block_k", "heads")
    ]


class Attention(Versioned):
    _fields_ = [
        ("struct_size", c_size_t),
        ("has_scale", c_int32),
        ("has_diagonal", c_int32),
        ("scale", c_double),
        ("softcap", c_double),
        ("left", c_int64),
        ("right", c_int64),
        ("diagonal", c_int64),
        ("align", c_int32),
        ("algorithm", c_int32),
        ("block_mask", c_void_p),
        ("lengths_q", c_void_p),
        ("lengths_k", c_void_p),
        ("lengths_count", c_int64),
        ("lengths_max_q", c_int64),
        ("lengths_max_k", c_int64),
        ("alibi_slopes", c_void_p),
        ("alibi_batch_stride", c_int64),
        ("dropout_probability", c_double),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("dropout_state", c_void_p),
        ("origin_row", c_int64),
        ("origin_column", c_int64),
        ("origin_batch", c_int64),
        ("origin_head", c_int64),
        ("deterministic", c_int32),
        ("reserved", c_int32),
    ]


class ForwardTensors(Versioned):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, POINTER(Tensor)) for name in ("q", "k", "v", "bias", "out", "lse", "visible")
    ]


class BackwardTensors(Versioned):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, POINTER(Tensor))
        for name in (
            *("q", "k", "v", "bias", "out", "lse", "grad_out", "grad_lse"),
            *("grad_q", "grad_k", "grad_v", "grad_bias", "visible"),
        )
    ]


class Execution(Versioned):
    _fields_ = [
        ("struct_size", c_size_t),
        ("executor", c_void_p),
        ("allocator", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("threads", c_int32),
        ("reserved", c_int32),
    ]


class Shapes(Versioned):
    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in ("batch", "q_length", "k_length", "q_heads", "kv_heads", "qk_dim", "v_dim")),
        *((name, c_int32) for name in ("dtype", "lse", "bias", "visible")),
    ]


class Plan(Versioned):
    _fields_ = [
        ("struct_size", c_size_t),
        ("storage", c_void_p),
        ("kernel", c_char_p),
        ("details", c_char_p),
        ("algorithm", c_int32),
        ("direction", c_int32),
        ("device", Device),
        ("block_q", c_int64),
        ("block_k", c_int64),
        ("shared_memory_bytes", c_size_t),
        ("workspace_bytes", c_size_t),
        ("flops", c_double),
        ("visible_pairs", c_double),
        ("minimum_bytes", c_double),
        ("traffic_bytes", c_double),
        ("standard_traffic_bytes", c_double),
        ("standard_workspace_bytes", c_double),
        ("rejected", c_void_p),
        ("rejected_count", c_size_t),
        ("threads", c_int32),
        ("reserved", c_int32),
    ]


def device_of(tensor):
    """Where a torch tensor lives, in Tessera's words."""
    return Device(1, tensor.device.index or 0) if tensor.is_cuda else Device()


def describe(tensor, shape, strides):
    return Tensor(tensor.data_ptr(), DTYPES[str(tensor.dtype)], 0, shape, strides, device_of(tensor))


def tokens(tensor):
    """A torch tensor (B, H, N, D) as Tessera's (batch, sequence, heads, head_dim)."""
    view = tensor.transpose(1, 2)
    return describe(view, tuple(view.shape), tuple(view.stride()))


def lse_tensor(tensor):
    """A torch tensor (B, H, N) as Tessera's LSE."""
    return describe(tensor, (*tensor.shape, 1), (*tensor.stride(), 1))


def broadcast_tensor(tensor):
    """A torch tensor (B or 1, H or 1, Nq or 1, Nk) as Tessera's bias or boolean mask."""
    return describe(tensor, tuple(tensor.shape), tuple(tensor.stride()))


def broadcast_tensors(**tensors):
    """Those that are given, by name."""
    return {name: broadcast_tensor(tensor) for name, tensor in tensors.items() if tensor is not None}


def with_variables(path, variables):
    """Another copy of the library, which reads these environment variables when it is loaded."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with tempfile.TemporaryDirectory() as folder:  # of the same file the loader would give the one that is there
            return ctypes.CDLL(shutil.copy(path, folder))
    finally:
        os.environ.clear()
        os.environ.update(before)


class Tessera:
    """The shared library. With variables: a copy of its own, as if the process had started with them in the environment,
    which the library reads when it is loaded."""

    def __init__(self, path, **variables):
        self.library = with_variables(path, variables) if variables else ctypes.CDLL(str(path))
        self.library.tsr_last_error.restype = c_char_p
        self.library.tsr_version.restype = c_char_p
        self.library.tsr_block_mask_release.restype = None
        self.library.tsr_plan_release.restype = None

    def version(self):
        return self.library.tsr_version().decode()

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"tessera: {self.library.tsr_last_error().decode()}")

    def forward(self, q, k, v, out, lse, bias=None, visible=None, **options):
        tensors = {"q": tokens(q), "k": tokens(k), "v": tokens(v), "out": tokens(out)}
        if lse is not None:
            tensors["lse"] = lse_tensor(lse)
        tensors |= broadcast_tensors(bias=bias, visible=visible)
        return Call(self, FORWARD, tensors, **options)

    def backward(self, q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v, bias=None, visible=None, **options):
        named = {"q": q, "k": k, "v": v, "out": out, "grad_out": grad_out}
        named |= {"grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
        tensors = {name: tokens(tensor) for name, tensor in named.items()}
        tensors["lse"] = lse_tensor(lse)
        tensors |= broadcast_tensors(bias=bias, visible=visible)
        return Call(self, BACKWARD, tensors, **options)

    def block_mask(self, kept, length, block):
        """A mask shared by all heads, from rows of truth values per block of `length` queries and keys."""
        flags = bytes(int(flag) for row in kept for flag in row)
        layout = BlockLayout(q_length=length, k_length=length, block_q=block, block_k=block, heads=1)
        mask = c_void_p()
        self.check(
            self.library.tsr_block_mask_from_blocks(byref(layout), flags, c_size_t(len(flags)), byref(mask))
        )
        return mask

    def release(self, mask):
        self.library.tsr_block_mask_release(mask)

    def workspace_bytes(self, shape, dtype, direction, threads):
        """What a call with contiguous tensors of `shape` (B, H, N, D) takes besides them."""
        batch, heads, length, dim = shape
        shapes = Shapes(batch=batch, q_length=length, k_length=length, q_heads=heads, qk_dim=dim)
        shapes.dtype, shapes.lse = DTYPES[str(dtype)], 1
        execution, plan = Execution(threads=threads), Plan()
        self.check(
            self.library.tsr_plan_shapes(
                None, byref(shapes), Device(), c_int32(direction), byref(execution), byref(plan)
            )
        )
        result = plan.workspace_bytes
        self.library.tsr_plan_release(byref(plan))
        return result


class Call:
    """A call with everything it needs; calling it computes."""

    def __init__(self, tessera, direction, tensors, causal=False, threads=0, stream=None, **options):
        """`stream`: a torch stream. `options`: fields of Attention."""
        self.tessera = tessera
        self.attention = Attention(**{"left": -1, "right": 0 if causal else -1, **options})
        self.execution = Execution(threads=threads, stream=stream.cuda_stream if stream is not None else None)
        kind, self.name = (
            (ForwardTensors, "forward") if direction == FORWARD else (BackwardTensors, "backward")
        )
        self.tensors = kind(**{name: ctypes.pointer(tensor) for name, tensor in tensors.items()})
        self.function = getattr(tessera.library, f"tsr_{self.name}")
        self.arguments = (byref(self.attention), byref(self.tensors), byref(self.execution))

    def lend(self, workspace):
        """From now on the call works in `workspace`, a torch tensor of bytes, and takes no memory of its own."""
        self.workspace = workspace
        self.execution.workspace, self.execution.workspace_bytes = workspace.data_ptr(), workspace.numel()
        return self

    def __call__(self):
        self.tessera.check(self.function(*self.arguments))

    def plan(self):
        """What the call will do: kernel, workspace, least traffic in bytes."""
        plan = Plan()
        self.tessera.check(getattr(self.tessera.library, f"tsr_plan_{self.name}")(*self.arguments, byref(plan)))
        facts = {
            "kernel": plan.kernel.decode(),
            "workspace_bytes": plan.workspace_bytes,
            "minimum_bytes": plan.minimum_bytes,
        }
        self.tessera.library.tsr_plan_release(byref(plan))
        return facts
