"""The extension: the library's calls on arrays that the caller has prepared.

It reads arrays by DLPack, without a copy: every object with ``__dlpack__`` (PyTorch, NumPy, CuPy, JAX), also tensors
that require a gradient, which it reads as if detached. It allocates no results: it writes outputs into arrays that
the caller passes. ``tessera.attention`` is the convenient form.

Errors: ValueError (an argument is wrong), NotImplementedError (no kernel supports the call), MemoryError,
RuntimeError (the device failed), each with the library's text; TypeError for an object that is not an array.
"""

from collections.abc import Sequence
from typing import Any

from tessera._types import AlgorithmName, AlignName, Array, DirectionName, DTypeName

__version__: str

SEQUENCE_FIRST: int
"""``layout`` 0: tensors are (batch, sequence, heads, head_dim), or (sequence, heads, head_dim)."""
HEADS_FIRST: int
"""``layout`` 1: tensors are (batch, heads, sequence, head_dim), or (heads, sequence, head_dim): PyTorch's order."""

class BlockMask:
    """For each block of queries, the blocks of keys that the mask keeps. Immutable; compared by identity."""

    @staticmethod
    def from_csr(q_length: int, k_length: int, row_offsets: Sequence[int] | Array, columns: Sequence[int] | Array, *,
                 block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @staticmethod
    def from_blocks(kept: Array, *, q_length: int | None = None, k_length: int | None = None,
                    block_q: int = 128, block_k: int = 128) -> BlockMask: ...
    @staticmethod
    def from_dense(visible: Array, *, block_q: int = 128, block_k: int = 128) -> BlockMask: ...
    @staticmethod
    def local(q_length: int, k_length: int, radius: int, *,
              block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @staticmethod
    def strided(q_length: int, k_length: int, stride: int, *,
                block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @staticmethod
    def fixed(q_length: int, k_length: int, stride: int, summary: int = 1, *,
              block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @staticmethod
    def big_bird(q_length: int, k_length: int, radius: int, global_blocks: int, random_blocks: int, seed: int = 0, *,
                 block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @staticmethod
    def butterfly(q_length: int, k_length: int, *,
                  block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @staticmethod
    def random(q_length: int, k_length: int, density: float, seed: int = 0, *,
               block_q: int = 128, block_k: int = 128, heads: int = 1) -> BlockMask: ...
    @property
    def q_length(self) -> int: ...
    @property
    def k_length(self) -> int: ...
    @property
    def block_q(self) -> int: ...
    @property
    def block_k(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def q_blocks(self) -> int: ...
    @property
    def k_blocks(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def density(self) -> float: ...
    def row(self, q_block: int, head: int = 0) -> list[int]: ...
    def column(self, k_block: int, head: int = 0) -> list[int]: ...
    def draw(self, head: int = 0) -> str: ...
    def prepare(self, gpu: int = 0) -> None: ...

class Options:
    """The options of a call. Immutable and hashable: make one once and use it for many calls.

    Arguments and attributes are those of ``tessera._arguments.Options``, except ``causal`` and ``window``. In their
    place ``left`` and ``right`` bound the band around the diagonal; -1 means no bound, and ``right=0`` is causal.
    """

    scale: float | None
    left: int
    right: int
    align: AlignName
    diagonal: int | None
    softcap: float
    dropout: float
    origin: tuple[int, int, int, int]
    algorithm: AlgorithmName
    deterministic: bool
    block_mask: BlockMask | None
    def __init__(self, *, scale: float | None = None, left: int = -1, right: int = -1, align: AlignName = "bottom_right",
                 diagonal: int | None = None, softcap: float = 0.0, dropout: float = 0.0,
                 origin: Sequence[int] = (0, 0, 0, 0), algorithm: AlgorithmName = "automatic",
                 deterministic: bool = False, block_mask: BlockMask | None = None) -> None: ...
    def with_blocks(self, block_mask: BlockMask | None) -> Options:
        """The same options with another block mask."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def forward(options: Options, q: Array, k: Array, v: Array, bias: Array | None, out: Array, lse: Array | None, *,
            alibi: Array | None = None, lengths_q: Array | None = None, lengths_k: Array | None = None,
            max_q: int = 0, max_k: int = 0, seed: int = 0, offset: int = 0, dropout_state: Array | None = None,
            visible: Array | None = None, layout: int = 0, stream: int | None = None, threads: int = 0,
            workspace_from_q: bool = False) -> None:
    """Computes attention into ``out`` and, unless None, ``lse``.

    q, k, v, out: rank 4, or 3 without a batch, in the order of ``layout``. bias: rank 1 to 4, broadcast to (batch,
    heads, queries, keys) in either layout. visible: as a bias, but bool or uint8; 0 hides a key.
    lse: (batch, heads, queries), or (heads, queries) without a batch, fp32
    (fp64 for fp64), in either layout. alibi: fp32 slopes (heads) or (batch, heads). lengths_q, lengths_k: int32
    cumulative lengths (count + 1) of packed sequences; q, k, v, out then have a batch of 1 or none. max_q, max_k: at
    least the longest sequence; 0 reads the lengths (CPU only). dropout_state: {seed, offset} as 2 int64 or uint64,
    read when the kernel runs, instead of ``seed`` and ``offset``. All arrays are on one device.

    stream: a ``cudaStream_t`` as a number. None is the current stream of the library that owns q, if it can be asked
    (PyTorch 2.10 and newer), and otherwise CUDA's legacy default stream. threads: 0 is all cores. workspace_from_q:
    takes workspace from the library that owns q, if it can be asked (PyTorch 2.10 and newer) and ``stream`` is its
    current one; otherwise, and by default, from the pool of this library. The call releases the GIL while the library
    works. On a GPU it enqueues the work and returns.
    """

def backward(options: Options, q: Array, k: Array, v: Array, bias: Array | None, out: Array, lse: Array,
             grad_out: Array, grad_lse: Array | None, grad_q: Array | None, grad_k: Array | None,
             grad_v: Array | None, grad_bias: Array | None, *, alibi: Array | None = None,
             lengths_q: Array | None = None, lengths_k: Array | None = None, max_q: int = 0, max_k: int = 0,
             seed: int = 0, offset: int = 0, dropout_state: Array | None = None, visible: Array | None = None,
             layout: int = 0, stream: int | None = None, threads: int = 0, workspace_from_q: bool = False) -> None:
    """Computes the gradients that are not None, from the inputs and outputs of ``forward``. ``grad_lse`` is the
    gradient of ``lse``, when the loss depends on it. The other arguments are those of ``forward``."""

class Plan:
    """The kernel that a call would run, and its cost; str() prints it."""

    @property
    def kernel(self) -> str: ...
    @property
    def algorithm(self) -> AlgorithmName: ...
    @property
    def direction(self) -> DirectionName: ...
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def block_q(self) -> int: ...
    @property
    def block_k(self) -> int: ...
    @property
    def shared_memory_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def details(self) -> str: ...
    @property
    def flops(self) -> float: ...
    @property
    def visible_pairs(self) -> float: ...
    @property
    def minimum_bytes(self) -> float: ...
    @property
    def traffic_bytes(self) -> float: ...
    @property
    def standard_traffic_bytes(self) -> float: ...
    @property
    def standard_workspace_bytes(self) -> float: ...
    @property
    def rejected(self) -> list[tuple[str, str]]: ...

def plan(options: Options, *, batch: int = 1, q_length: int, k_length: int, q_heads: int = 1, kv_heads: int = 0,
         qk_dim: int = 64, v_dim: int = 0, dtype: DTypeName = "fp32", return_lse: bool = True, bias: bool = False,
         alibi: bool = False, visible: bool = False, packed: bool = False, device: str = "cpu",
         direction: DirectionName = "forward", threads: int = 0) -> Plan:
    """The plan that forward or backward would follow. ``packed``: ``batch`` counts packed sequences; the longest ones
    have ``q_length`` queries and ``k_length`` keys. ``device``: "cpu", "cuda" or "cuda:1"."""

def alibi_slopes(heads: int) -> list[float]:
    """The slopes of the ALiBi paper."""

def current_stream(array: Array) -> int | None:
    """The current stream of the library that owns a GPU array; None when it cannot be asked."""

def command(arguments: Sequence[str]) -> int:
    """Runs the command ``tessera`` and returns its exit status. It handles SIGINT and SIGTERM itself, so run it in a
    separate process. Missing when the build has no command."""

def build_info() -> str: ...
def devices() -> list[dict[str, str]]:
    """Each device of this machine: device, name, description."""
def kernels() -> list[dict[str, Any]]:
    """Each kernel of this build: name, algorithm, direction, device, features, missing."""
