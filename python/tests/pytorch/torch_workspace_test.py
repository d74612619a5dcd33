"""Workspace from PyTorch: what the extension takes from the library of q, and gives back, and what happens without."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch_support import CUDA, DEVICE, cuda_only, randn, torch

import tessera
from tessera import _core
from tessera.torch import attention

if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip(f"PyTorch {torch.__version__} has no DLPack exchange table (2.10 has): workspace is the library's own",
                allow_module_level=True)

SHAPE = (2, 192, 4, 32)


# --- DLPack's exchange table, to put one's own allocator in ----------------------------------------------------------


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", Deleter),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
Allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.POINTER(Managed)),
                            ctypes.c_void_p, SetError)


class Table(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("previous", ctypes.c_void_p), ("allocate", Allocate),
                ("others", ctypes.c_void_p * 4)]


def table_of_torch():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return Table.from_address(get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


class Lender:
    """PyTorch's table with an allocator that counts, and that refuses while `refusing`. Its tensors are `lender(x)`."""

    _alive = []  # the extension keeps the address of a table for as long as the process lives

    def __init__(self, allocator=True):
        self.original = table_of_torch()
        self.taken, self.given_back, self.refusing = [], [], False
        self.deleters = {}
        self.callbacks = Allocate(self.allocate), Deleter(self.give_back)
        self.table = Table(self.original.version, None, self.callbacks[0] if allocator else Allocate(),
                           self.original.others)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.name = b"dlpack_exchange_api"
        capsule = new(ctypes.addressof(self.table), self.name, None)
        self.type = type("Lent", (torch.Tensor,), {"__dlpack_c_exchange_api__": capsule})
        self._alive.append(self)

    def __call__(self, tensor):
        return tensor.as_subclass(self.type)

    def allocate(self, wanted, out, context, set_error):
        if self.refusing:
            set_error(context, b"MemoryError", b"nothing is left\nframe #0: of no interest")
            return -1
        status = self.original.allocate(wanted, out, context, set_error)
        if status == 0:
            tensor = wanted.contents
            self.taken.append((tensor.device_type, tensor.device_index, tensor.shape[0]))
            address = ctypes.addressof(out.contents.contents)
            self.deleters[address] = ctypes.cast(out.contents.contents.deleter, ctypes.c_void_p).value
            out.contents.contents.deleter = self.callbacks[1]
        return status

    def give_back(self, address):
        self.given_back.append(address)
        Deleter(self.deleters.pop(address))(address)


def arrays():
    """q, k, v, out, lse of a call, and the gradients' arrays."""
    torch.manual_seed(0)
    q, k, v, grad = (randn(*SHAPE, dtype=torch.float32) for _ in range(4))
    out, lse = torch.empty_like(q), torch.empty(SHAPE[0], SHAPE[2], SHAPE[1], device=DEVICE)
    return (q, k, v), (out, lse), (grad, *(torch.empty_like(q) for _ in range(3)))


def both(given, results, grads, of_q=lambda q: q, **arguments):
    """Forward and backward by the extension, deterministic; all results."""
    (q, *kv), (out, lse), (grad, *outputs) = given, results, grads
    options = _core.Options(right=0, deterministic=True)
    _core.forward(options, of_q(q), *kv, None, out, lse, **arguments)
    _core.backward(options, of_q(q), *kv, None, out, lse, grad, None, *outputs, None, **arguments)
    return [x.clone() for x in (out, lse, *outputs)]


def workspace_of(direction, shape=SHAPE, dtype="float32", **words):
    return tessera.plan(shape, dtype=dtype, device=DEVICE, direction=direction, causal=True, **words).workspace_bytes


def test_memory_of_the_library_changes_no_bit():
    want = both(*arrays())
    assert all(x.abs().max() > 0 for x in want)
    got = both(*arrays(), workspace_from_q=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_what_was_in_it_does_not_matter():
    """In this mode PyTorch fills memory that it gives out with ones: NaN, in every type."""
    want = both(*arrays())
    given = arrays()
    torch.use_deterministic_algorithms(True)
    try:
        got = both(*given, workspace_from_q=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_it_is_taken_once_a_call_and_given_back():
    lender = Lender()
    need = [workspace_of(direction, deterministic=True) for direction in ("forward", "backward")]
    need = [bytes for bytes in need if bytes > 0]
    assert need, "no workspace: nothing is tested"
    got = both(*arrays(), of_q=lender, workspace_from_q=True)
    assert [device for *device, _ in lender.taken] == [[2 if CUDA else 1, 0]] * len(need)
    assert len(lender.given_back) == len(need) and not lender.deleters
    assert all(torch.equal(a, b) for a, b in zip(got, both(*arrays())))
    if CUDA:
        assert [bytes for *_, bytes in lender.taken] == [bytes + 255 for bytes in need]


def test_nothing_is_taken_unless_asked():
    lender = Lender()
    both(*arrays(), of_q=lender)
    assert lender.taken == []


def test_a_library_without_an_allocator_serves():
    want = both(*arrays())
    got = both(*arrays(), of_q=Lender(allocator=False), workspace_from_q=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want))
    if not CUDA:
        given, results, grads = ([x.numpy() for x in group] for group in arrays())
        (q, k, v), (out, lse), options = given, results, _core.Options(right=0)
        _core.forward(options, q, k, v, None, out, lse, workspace_from_q=True)
        _core.backward(options, q, k, v, None, out, lse, grads[0], None, *grads[1:], None, workspace_from_q=True)
        assert all(torch.equal(torch.from_numpy(a), b) for a, b in zip((out, lse, *grads[1:]), want))


def test_a_refusal_is_a_memory_error_and_the_next_call_works():
    lender = Lender()
    want = both(*arrays(), of_q=lender, workspace_from_q=True)
    lender.refusing = True
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"^out of memory: the call needs \d+ bytes of workspace on (cpu|cuda:0); lend it as execution.workspace, .*: nothing is left$"):
            both(*arrays(), of_q=lender, workspace_from_q=True)
    lender.refusing = False
    got = both(*arrays(), of_q=lender, workspace_from_q=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert len(lender.taken) == len(lender.given_back) and not lender.deleters


def test_other_errors_keep_their_words():
    q, k, v = arrays()[0]
    for lend in (False, True):
        with pytest.raises(ValueError, match="^out") as error:
            _core.forward(_core.Options(), q, k, v, None, torch.empty_like(q)[:, :5], None, workspace_from_q=lend)
        assert "\n" not in str(error.value)


def test_threads_do_not_share_it():
    lender = Lender()
    want = both(*arrays())
    with ThreadPoolExecutor(4) as pool:
        inputs = [arrays() for _ in range(16)]
        results = list(pool.map(lambda x: both(*x, of_q=lender, workspace_from_q=True), inputs))
    for got in results:
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert len(lender.taken) == len(lender.given_back) > 0 and not lender.deleters


# --- on a GPU, where tessera.torch asks for it -----------------------------------------------------------------------

LONG = (1, 4096, 8, 64)


def long_tensor(grad=False):
    return randn(*LONG, dtype=torch.bfloat16, grad=grad)


def training_step(x):
    return torch.autograd.grad(attention(x, x, x, causal=True, deterministic=True).square().sum(), x)[0]


def junk(count):
    """Takes memory that is free and fills it with what would be noticed in a result."""
    return [torch.full((1 << 20,), float("nan"), device=DEVICE) for _ in range(count)]


def requested_beyond(call):
    """The most bytes that PyTorch's allocator had given out at a time during a call, beyond what it had before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"], torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    exact = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before[0]
    assert torch.cuda.max_memory_allocated() - before[1] >= exact
    del result
    return exact


@cuda_only
def test_pytorch_counts_it():
    leaves = [long_tensor(grad=True) for _ in range(3)]
    out = attention(*leaves, causal=True)
    grad_out = torch.ones_like(out)

    def backward():
        return torch.autograd.grad(out, leaves, grad_out, retain_graph=True)

    backward()
    need = workspace_of("backward", LONG, "bfloat16")
    assert need > 1 << 20
    held = 3 * out.numel() * out.element_size()  # the gradients
    assert held + need <= requested_beyond(backward) <= held + need + 512


@cuda_only
def test_pytorch_counts_it_for_tensors_of_the_plain_function():
    x = long_tensor()
    out, lse = tessera.attention(x, x, x, causal=True, return_lse=True)
    need, held = workspace_of("backward", LONG, "bfloat16"), 3 * x.numel() * x.element_size()

    def backward(**words):
        return tessera.attention_backward(out, x, x, x, out, lse, causal=True, **words)

    backward()
    assert held + need <= requested_beyond(backward) <= held + need + 512
    other = torch.cuda.Stream()  # not PyTorch's current one: its memory would be used again too early
    assert requested_beyond(lambda: backward(stream=other.cuda_stream)) == held


@cuda_only
def test_a_stream_of_ones_own():
    """Memory that is given back while the GPU still works goes to later work of the same stream only."""
    x = long_tensor(grad=True)
    want = training_step(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        got = training_step(x)
    kept = junk(64)  # of the default stream
    with torch.cuda.stream(stream):
        kept += junk(64)
    torch.cuda.synchronize()
    assert torch.equal(got, want)


@cuda_only
def test_a_graph_has_memory_of_its_own():
    x = long_tensor(grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training_step(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grad = training_step(x)
    for seed in range(3):
        with torch.no_grad():
            torch.manual_seed(seed)
            x.copy_(long_tensor())
        want = training_step(x)
        kept = junk(256)
        graph.replay()
        kept += junk(256)
        torch.cuda.synchronize()
        assert torch.equal(grad, want)
        del kept


@cuda_only
def test_graphs_of_the_compiler():
    pytest.importorskip("triton", reason="torch.compile needs Triton on a GPU")
    x = randn(*LONG, dtype=torch.float32, grad=True)

    def step(x):
        return attention(x * 2, x, x, causal=True, deterministic=True).square().sum()

    want = torch.autograd.grad(step(x), x)[0]
    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):  # eager, recorded, replayed
        torch.compiler.cudagraph_mark_step_begin()
        got = torch.autograd.grad(compiled(x), x)[0].clone()
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@cuda_only
def test_pytorchs_limit_holds_and_the_next_call_works():
    """The N x N matrices of standard attention do not fit below the limit, a call without them does."""
    x = long_tensor()
    want = attention(x, x, x, causal=True)
    need = workspace_of("forward", LONG, "bfloat16", algorithm="standard")
    assert need > 1 << 28
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + need / 2) / total)
    try:
        for _ in range(2):
            with pytest.raises(MemoryError, match="(?s)the call needs .* bytes of workspace on cuda:0; .*out of memory"):
                attention(x, x, x, causal=True, algorithm="standard")
            assert torch.equal(attention(x, x, x, causal=True), want)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    got = attention(x, x, x, causal=True, algorithm="standard")
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
