/// \file
/// The C interface: everything of the C++ interface, from C11 and from every language that calls C.
///
/// **Errors.** A function that can fail returns a tsr_status: TSR_OK (0) or why it failed. The text of the
/// most recent failure of the calling thread is in tsr_last_error(). No exception ever leaves the library,
/// and it never prints, exits or aborts. After a failure the outputs are untouched (unless the status is
/// TSR_DEVICE_FAILURE). A null pointer where something is needed is TSR_INVALID_ARGUMENT, not a crash.
/// Callbacks written in C++ should not throw. If one does, the call ends with TSR_INTERNAL_ERROR or, for
/// std::bad_alloc, TSR_OUT_OF_MEMORY, and the outputs may be partly written.
///
/// **Structs.** Structs that start with `struct_size` may grow at their end in later versions. Initialise
/// them with their macro, which sets `struct_size` and the defaults, and then set fields by name:
///
///     tsr_attention attention = TSR_ATTENTION_INIT;
///     attention.right = 0;  // causal
///
/// A program built against an older header passes a smaller struct: what it does not have takes its default.
/// A program built against a newer header passes a larger one: refused unless all that is unknown is zero.
/// tsr_tensor, tsr_device and tsr_rejection never change.
///
/// **Not given.** An optional argument is left out by a null pointer; a tensor also by being all zero.
///
/// **Ownership.** Tensors, lengths, slopes and all other arrays stay the caller's and are only used during
/// the call. What a function hands out as a pointer to an opaque struct belongs to the caller, who gives it
/// back to the matching `_release` function. Text goes into the caller's buffer, see tsr_build_info.
///
/// **Threads.** All functions may be called from several threads at once, also with the same block mask.
///
/// **Environment.** The library reads its variables once a process, in the first call: a later change has no effect, and
/// calls are safe beside setenv. TESSERA_KERNEL forces a kernel by name, TESSERA_TARGET the instruction set of CPU
/// kernels, TESSERA_BLOCK_K the keys per step of cpu.flash2; TESSERA_LAZY_MAXIMUM switches off the speculative maximum
/// of GPU kernels. A call that an invalid value concerns fails and names it.
///
/// Enumerations are passed as int32_t, so that their size is fixed and an unknown value can be refused.
#ifndef TESSERA_CAPI_H
#define TESSERA_CAPI_H

// NOLINTBEGIN: this is C
#include <stddef.h>
#include <stdint.h>

#include "tessera/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- status -------------------------------------------------------------------------------------------

/// Why a call failed; 0: it did not.
typedef int32_t tsr_status;
enum {
  TSR_OK = 0,                ///< All went well.
  TSR_INVALID_ARGUMENT = 1,  ///< An argument is wrong: the text names it, its value and what is allowed.
  TSR_UNSUPPORTED = 2,       ///< No kernel serves the call: the text lists what each one lacks.
  TSR_OUT_OF_MEMORY = 3,     ///< Memory could not be had; nothing was leaked, the library stays usable.
  TSR_DEVICE_FAILURE = 4,    ///< The device or its driver failed; the text carries its own words.
  TSR_INTERNAL_ERROR = -1    ///< A callback threw; or a fault of the library: please report it with the text.
};

/// The text of the most recent failure on the calling thread, "" when there was none. Never null. It is
/// valid until the next failing call of the same thread; a call that succeeds leaves it as it is. Texts
/// longer than 4095 bytes are cut.
TESSERA_API const char* tsr_last_error(void);

/// The name of a status, as in "invalid_argument"; "unknown" for any other number. Never null.
TESSERA_API const char* tsr_status_name(tsr_status status);

// --- tensors ------------------------------------------------------------------------------------------

/// The type of one element.
typedef int32_t tsr_dtype;
enum {
  TSR_FP64 = 0,  ///< IEEE binary64 (CPU only); accumulated in fp64.
  TSR_FP32 = 1,  ///< IEEE binary32; accumulated in fp32.
  TSR_FP16 = 2,  ///< IEEE binary16; accumulated in fp32.
  TSR_BF16 = 3   ///< bfloat16, the upper half of a binary32; accumulated in fp32.
};

/// The kind of memory data lives in.
typedef int32_t tsr_device_type;
enum {
  TSR_CPU = 0,  ///< Host memory.
  TSR_CUDA = 1  ///< Memory of an NVIDIA GPU.
};

/// A place where data lives and kernels run. All zero: the CPU.
typedef struct tsr_device {
  tsr_device_type type;  ///< The kind of device.
  int32_t index;         ///< Which one of its kind, as the CUDA runtime counts them; 0 for the CPU.
} tsr_device;

/// A view of the caller's memory with four dimensions. What they mean depends on the argument:
///
/// | argument                         | dimensions                                                |
/// |----------------------------------|-----------------------------------------------------------|
/// | q, k, v, out and their gradients | batch, sequence, heads, head_dim                          |
/// | lse, grad_lse                    | batch, heads, sequence, 1                                 |
/// | bias, grad_bias                  | batch or 1, heads or 1, query sequence or 1, key sequence |
///
/// Strides count elements and may be anything (also zero or negative, for inputs) except along the last
/// dimension, which must be contiguous. An output may not address one element twice. A tensor with a size
/// of 0 holds nothing: its pointer may be null, its strides anything. All zero means "not given".
typedef struct tsr_tensor {
  void* data;          ///< The first element; aligned to the size of one element.
  tsr_dtype dtype;     ///< The type of the elements.
  int32_t read_only;   ///< Not 0: refused as an output.
  int64_t shape[4];    ///< Sizes, outermost first.
  int64_t strides[4];  ///< Distances in elements, outermost first.
  tsr_device device;   ///< Where `data` lives.
} tsr_tensor;

/// A view of host memory without gaps, the last dimension innermost; for memory of a GPU set `device`
/// afterwards. Nothing is checked here but when the tensor is used; strides too large for 64 bits become
/// INT64_MAX, which is then refused.
TESSERA_API tsr_tensor tsr_tensor_contiguous(void* data, tsr_dtype dtype, int64_t size0, int64_t size1,
                                             int64_t size2, int64_t size3);

/// Which argument a tensor of another library is meant for.
typedef int32_t tsr_role;
enum {
  TSR_ROLE_TOKENS = 0,  ///< q, k, v, out, gradients: rank 4, or 3 (sequence, heads, head_dim).
  TSR_ROLE_LSE = 1,     ///< lse, grad_lse: rank 4, 3 (batch, heads, sequence) or 2 (heads, sequence).
  TSR_ROLE_BIAS = 2     ///< bias, grad_bias: rank 1 to 4; missing leading dimensions are 1 (broadcast).
};

/// The same memory as a DLPack tensor describes, without a copy. `dl_tensor` points to a `DLTensor` (of
/// <dlpack/dlpack.h>, any version), which is only read during the call; its memory must outlive `result`.
/// Accepted: float of 64, 32 or 16 bits and bfloat of 16 bits, one lane; memory of the CPU, of CUDA, pinned
/// by CUDA (taken as memory of the CPU) and managed by CUDA (taken as memory of its GPU).
TESSERA_API tsr_status tsr_tensor_from_dlpack(const void* dl_tensor, tsr_role role, tsr_tensor* result);

/// The name of an element type, as in "bf16"; "unknown" for any other number. Never null.
TESSERA_API const char* tsr_dtype_name(tsr_dtype dtype);

// --- block masks --------------------------------------------------------------------------------------

/// A block-sparse mask: for each block of queries, the blocks of keys that are kept. Immutable and counted:
/// a function that makes one gives it one reference, which the caller owns.
typedef struct tsr_block_mask tsr_block_mask;

/// The sizes a block mask is made for.
typedef struct tsr_block_layout {
  size_t struct_size;  ///< Set by TSR_BLOCK_LAYOUT_INIT.
  int64_t q_length;    ///< Number of queries (of the longest sequence when sequences are packed).
  int64_t k_length;    ///< Number of keys (likewise).
  int64_t block_q;     ///< Queries per block, 128 by default; the last block may be shorter.
  int64_t block_k;     ///< Keys per block, 128 by default; the last block may be shorter.
  int64_t heads;       ///< 1, the default: all heads share the mask; else the number of query heads.
} tsr_block_layout;

/// The defaults of a tsr_block_layout; set `q_length` and `k_length`.
#define TSR_BLOCK_LAYOUT_INIT \
  { sizeof(tsr_block_layout), 0, 0, 128, 128, 1 }

/// What a block mask holds.
typedef struct tsr_block_mask_info {
  size_t struct_size;  ///< Set by TSR_BLOCK_MASK_INFO_INIT.
  int64_t q_length;    ///< As in its layout.
  int64_t k_length;    ///< As in its layout.
  int64_t block_q;     ///< As in its layout.
  int64_t block_k;     ///< As in its layout.
  int64_t heads;       ///< As in its layout.
  int64_t q_blocks;    ///< Number of blocks of queries.
  int64_t k_blocks;    ///< Number of blocks of keys.
  int64_t kept;        ///< Number of kept blocks, over all heads of the mask.
  double density;      ///< Kept blocks as a share of all.
} tsr_block_mask_info;

/// An empty tsr_block_mask_info, ready to be filled.
#define TSR_BLOCK_MASK_INFO_INIT \
  { sizeof(tsr_block_mask_info), 0, 0, 0, 0, 0, 0, 0, 0, 0.0 }

/// From compressed rows. `row_offsets` has heads * q_blocks + 1 entries starting at 0; the kept key blocks
/// of block row r (r = head * q_blocks + q_block) are columns[row_offsets[r]] up to, not including,
/// columns[row_offsets[r + 1]], strictly ascending. The arrays are copied.
TESSERA_API tsr_status tsr_block_mask_from_csr(const tsr_block_layout* layout, const int64_t* row_offsets,
                                               size_t row_offset_count, const int32_t* columns,
                                               size_t column_count, tsr_block_mask** mask);

/// From one flag per block: kept[(head * q_blocks + q_block) * k_blocks + k_block]; `count` flags, copied.
TESSERA_API tsr_status tsr_block_mask_from_blocks(const tsr_block_layout* layout, const uint8_t* kept,
                                                  size_t count, tsr_block_mask** mask);

/// From one flag per element, visible[(head * q_length + i) * k_length + j]: a block is kept when any of its
/// elements is visible, and refused when it is only partly visible. `count` flags, copied.
TESSERA_API tsr_status tsr_block_mask_from_dense(const tsr_block_layout* layout, const uint8_t* visible,
                                                 size_t count, tsr_block_mask** mask);

/// Blocks at most `radius` blocks away from the diagonal block.
TESSERA_API tsr_status tsr_block_mask_local(const tsr_block_layout* layout, int64_t radius,
                                            tsr_block_mask** mask);

/// Sparse Transformer, strided: fewer than `stride` blocks away from the diagonal block, or a multiple of
/// `stride` blocks away.
TESSERA_API tsr_status tsr_block_mask_strided(const tsr_block_layout* layout, int64_t stride,
                                              tsr_block_mask** mask);

/// Sparse Transformer, fixed: the same group of `stride` blocks as the diagonal block, or one of the last
/// `summary` blocks (1 is usual) of any group.
TESSERA_API tsr_status tsr_block_mask_fixed(const tsr_block_layout* layout, int64_t stride, int64_t summary,
                                            tsr_block_mask** mask);

/// BigBird: local with `radius`, the first `global` block rows and columns, and `random` further blocks per
/// row, chosen by `seed`.
TESSERA_API tsr_status tsr_block_mask_big_bird(const tsr_block_layout* layout, int64_t radius, int64_t global,
                                               int64_t random, uint64_t seed, tsr_block_mask** mask);

/// Butterfly: the diagonal block, and the blocks whose index differs from its index in exactly one bit.
TESSERA_API tsr_status tsr_block_mask_butterfly(const tsr_block_layout* layout, tsr_block_mask** mask);

/// A share `density` in (0, 1] of all blocks, spread evenly over the rows, drawn anew for each head.
TESSERA_API tsr_status tsr_block_mask_random(const tsr_block_layout* layout, double density, uint64_t seed,
                                             tsr_block_mask** mask);

/// Takes one more reference. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_block_mask_retain(tsr_block_mask* mask);

/// Gives one reference back; the last one frees the mask. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_block_mask_release(tsr_block_mask* mask);

/// Copies the mask to a GPU now, so that the first call there need not; nothing happens for the CPU. The copy lives as
/// long as the mask: keep a reference for as long as a captured CUDA graph is replayed.
TESSERA_API tsr_status tsr_block_mask_prepare(const tsr_block_mask* mask, tsr_device device);

/// The sizes of a mask and how much it keeps.
TESSERA_API tsr_status tsr_block_mask_describe(const tsr_block_mask* mask, tsr_block_mask_info* info);

/// The key blocks that block row `q_block` keeps, ascending. `indices` then points into the mask and stays
/// valid as long as a reference to it is held; it may be null when `count` is 0.
TESSERA_API tsr_status tsr_block_mask_row(const tsr_block_mask* mask, int64_t head, int64_t q_block,
                                          const int32_t** indices, size_t* count);

/// The query blocks that keep `k_block`, ascending; as tsr_block_mask_row.
TESSERA_API tsr_status tsr_block_mask_column(const tsr_block_mask* mask, int64_t head, int64_t k_block,
                                             const int32_t** indices, size_t* count);

/// One line of '#' (kept) and '.' per block row, for one head. Text as in tsr_build_info.
TESSERA_API tsr_status tsr_block_mask_draw(const tsr_block_mask* mask, int64_t head, char* buffer,
                                           size_t capacity, size_t* length);

// --- the operation ------------------------------------------------------------------------------------

/// How attention is computed. Every algorithm gives the same result within rounding.
typedef int32_t tsr_algorithm;
enum {
  TSR_AUTOMATIC = 0,  ///< The fastest that serves the problem.
  TSR_STANDARD = 1,   ///< Separate passes over an N x N matrix in memory.
  TSR_FLASH1 = 2,     ///< Tiles, keys outside.
  TSR_FLASH2 = 3,     ///< Tiles, queries outside.
  TSR_FLASH3 = 4,     ///< flash2 as an asynchronous pipeline of copies and products; requires compute capability 9.0.
  TSR_MINIMAL = 5     ///< The teaching kernel: one thread per row.
};

/// Forward or backward.
typedef int32_t tsr_direction;
enum {
  TSR_FORWARD = 0,  ///< Output and LSE.
  TSR_BACKWARD = 1  ///< Gradients.
};

/// Where the diagonal d lies: row i meets it at column i + d.
typedef int32_t tsr_align;
enum {
  TSR_BOTTOM_RIGHT = 0,  ///< The last query meets the last key: d = Nk - Nq. The default.
  TSR_TOP_LEFT = 1       ///< The first query meets the first key: d = 0 (PyTorch's `is_causal`).
};

/// The operation, everything but the data:
///
///     O = dropout(softmax(softcap(scale * Q K^T) + bias + alibi + mask)) V
///
/// Row i sees column j when i + d - left <= j <= i + d + right (a bound of -1 is no bound), the block that
/// holds (i, j) is kept, and both belong to the same packed sequence; d is the diagonal. A row that sees
/// nothing gives 0.
typedef struct tsr_attention {
  size_t struct_size;                ///< Set by TSR_ATTENTION_INIT.
  int32_t has_scale;                 ///< Not 0: use `scale`. 0, the default: 1 / sqrt(head_dim of q).
  int32_t has_diagonal;              ///< Not 0: use `diagonal`. 0, the default: `align` decides.
  double scale;                      ///< Factor on Q K^T, when `has_scale`: 0, or +-2^-100 to +-2^100
                                     ///< (for fp64 2^-1000 to 2^1000).
  double softcap;                    ///< cap * tanh(s / cap) on the scaled scores; 0: off. It and
                                     ///< scale / softcap are within the range of scale.
  int64_t left;                      ///< Keys seen before the diagonal; -1, the default: all.
  int64_t right;                     ///< Keys seen after the diagonal; -1, the default: all; 0: causal.
  int64_t diagonal;                  ///< An explicit d in global positions, when `has_diagonal`.
  tsr_align align;                   ///< Where the diagonal lies otherwise.
  tsr_algorithm algorithm;           ///< How it is computed.
  const tsr_block_mask* block_mask;  ///< Kept blocks; null: all. Borrowed for the time of the call.
  const int32_t* lengths_q;          ///< Packed sequences: lengths_count + 1 cumulative lengths from 0,
  const int32_t* lengths_k;          ///< where the data lives; the tensors then have a batch of 1.
  int64_t lengths_count;             ///< Number of packed sequences; 0: a plain batch.
  int64_t lengths_max_q;             ///< The longest query sequence, or more; 0: find out (CPU only).
  int64_t lengths_max_k;             ///< The longest key sequence, or more; 0: find out (CPU only).
  const float* alibi_slopes;         ///< -slope * |i + d - j|: one slope per query head; null: off. A
                                     ///< diagonal that is not bottom_right is less than 2^29 away from 0.
  int64_t alibi_batch_stride;        ///< Distance between the slopes of two batch entries; 0: shared.
  double dropout_probability;        ///< In [0, 1 - 2^-16), rounded to steps of 2^-15; 0: off. What is kept
                                     ///< is divided by 1 minus the rounded probability.
  uint64_t dropout_seed;             ///< Chooses the random bits ...
  uint64_t dropout_offset;           ///< ... together with this, which a training loop counts up.
  const uint64_t* dropout_state;     ///< {seed, offset} read when the kernel runs, from the memory where
                                     ///< the data lives; null: the two values above.
  int64_t origin_row;                ///< Global index of query 0, for a shard of a longer sequence.
  int64_t origin_column;             ///< Global index of key 0.
  int64_t origin_batch;              ///< Global index of batch entry 0.
  int64_t origin_head;               ///< Global index of query head 0.
  int32_t deterministic;             ///< Not 0: backward bitwise reproducible also on GPUs.
  int32_t reserved;                  ///< 0.
} tsr_attention;

/// The defaults of a tsr_attention: plain attention, everyone sees everyone.
#define TSR_ATTENTION_INIT                                                                                  \
  {                                                                                                         \
    sizeof(tsr_attention), 0, 0, 0.0, 0.0, -1, -1, 0, TSR_BOTTOM_RIGHT, TSR_AUTOMATIC, NULL, NULL, NULL, 0, \
        0, 0, NULL, 0, 0.0, 0, 0, NULL, 0, 0, 0, 0, 0, 0                                                    \
  }

/// The tensors of a forward call. Query head h reads key/value head h / (Hq / Hkv).
typedef struct tsr_forward_tensors {
  size_t struct_size;      ///< Set by TSR_FORWARD_TENSORS_INIT.
  const tsr_tensor* q;     ///< (batch, Nq, Hq, d_qk)
  const tsr_tensor* k;     ///< (batch, Nk, Hkv, d_qk); Hkv divides Hq.
  const tsr_tensor* v;     ///< (batch, Nk, Hkv, d_v)
  const tsr_tensor* bias;  ///< Optional: (batch|1, Hq|1, Nq|1, Nk), the type of q or its accumulator type.
  const tsr_tensor* out;   ///< Written: (batch, Nq, Hq, d_v)
  const tsr_tensor* lse;   ///< Optional, written: (batch, Hq, Nq, 1) in fp32 (fp64 for fp64).
} tsr_forward_tensors;

/// No tensors yet.
#define TSR_FORWARD_TENSORS_INIT \
  { sizeof(tsr_forward_tensors), NULL, NULL, NULL, NULL, NULL, NULL }

/// The tensors of a backward call. Gradients that are not given are not computed; at least one must be.
typedef struct tsr_backward_tensors {
  size_t struct_size;           ///< Set by TSR_BACKWARD_TENSORS_INIT.
  const tsr_tensor* q;          ///< As given to forward.
  const tsr_tensor* k;          ///< As given to forward.
  const tsr_tensor* v;          ///< As given to forward.
  const tsr_tensor* bias;       ///< As given to forward.
  const tsr_tensor* out;        ///< What forward wrote.
  const tsr_tensor* lse;        ///< What forward wrote.
  const tsr_tensor* grad_out;   ///< Gradient of `out`.
  const tsr_tensor* grad_lse;   ///< Optional: gradient of `lse`, same shape and type.
  const tsr_tensor* grad_q;     ///< Written, shape and type of q.
  const tsr_tensor* grad_k;     ///< Written, shape and type of k.
  const tsr_tensor* grad_v;     ///< Written, shape and type of v.
  const tsr_tensor* grad_bias;  ///< Written, shape and type of bias: summed over what was broadcast.
} tsr_backward_tensors;

/// No tensors yet.
#define TSR_BACKWARD_TENSORS_INIT \
  { sizeof(tsr_backward_tensors), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

// --- execution ----------------------------------------------------------------------------------------

/// Runs the parallel parts of CPU kernels on the caller's own threads.
typedef struct tsr_executor {
  size_t struct_size;  ///< Set by TSR_EXECUTOR_INIT.
  void* context;       ///< Passed to both functions.
  /// How many workers are worth starting; at least 1.
  int (*concurrency)(void* context);
  /// Calls body(body_context, w) once for every w in [0, workers), on any threads, in any order, together or
  /// one after the other, and returns when all have returned.
  void (*run)(void* context, int workers, void (*body)(void* body_context, int worker), void* body_context);
} tsr_executor;

/// An executor without functions; set both.
#define TSR_EXECUTOR_INIT \
  { sizeof(tsr_executor), NULL, NULL, NULL }

/// Supplies workspace. Must be safe from several threads when calls come from several threads.
typedef struct tsr_allocator {
  size_t struct_size;  ///< Set by TSR_ALLOCATOR_INIT.
  void* context;       ///< Passed to both functions.
  /// `bytes` > 0 of memory of the device the call runs on, aligned to `alignment` (a power of two), or null
  /// when there is none. `stream` is the call's stream (null on the CPU).
  void* (*allocate)(void* context, size_t bytes, size_t alignment, void* stream);
  /// Takes back what `allocate` gave, with the same sizes.
  void (*deallocate)(void* context, void* data, size_t bytes, size_t alignment, void* stream);
} tsr_allocator;

/// An allocator without functions; set both.
#define TSR_ALLOCATOR_INIT \
  { sizeof(tsr_allocator), NULL, NULL, NULL }

/// Where and with what a call runs. A result never depends on anything in here.
typedef struct tsr_execution {
  size_t struct_size;              ///< Set by TSR_EXECUTION_INIT.
  const tsr_executor* executor;    ///< The caller's threads; null: the library's pool.
  const tsr_allocator* allocator;  ///< Where workspace comes from; null: the system.
  void* stream;                    ///< The cudaStream_t to launch on (CUDA only).
  void* workspace;                 ///< Memory lent for this alone, aligned to 256 bytes; null: allocated.
  size_t workspace_bytes;          ///< Its size: at least tsr_plan.workspace_bytes.
  int32_t threads;                 ///< CPU threads; 0: as many as the executor has, or the process may use.
  int32_t reserved;                ///< 0.
} tsr_execution;

/// The defaults of a tsr_execution: all cores, a pool of the library's own, default memory.
#define TSR_EXECUTION_INIT \
  { sizeof(tsr_execution), NULL, NULL, NULL, NULL, 0, 0, 0 }

// --- the calls ----------------------------------------------------------------------------------------

/// Computes attention. Outputs are fully overwritten; a row that sees no key gives 0 and an LSE of
/// -infinity. Bitwise reproducible; a row depends on its own head of its own sequence alone, not on what else is
/// in the call, nor on `execution` (tessera::forward in attention.h lists two exceptions on GPUs). On the CPU the
/// call returns when the result is there; on a GPU work is queued on the stream.
/// The calling thread's floating-point environment has no influence, and it is the same after the call.
/// `attention` and `execution` may be null: the defaults.
TESSERA_API tsr_status tsr_forward(const tsr_attention* attention, const tsr_forward_tensors* tensors,
                                   const tsr_execution* execution);

/// Computes the gradients of tsr_forward by recomputation, from q, k, v, out and lse of the same
/// description. The same promises hold, on GPUs when `deterministic` is set; gradients of keys and values are sums
/// over the query heads of a group, the gradient of a bias is one over all that it was broadcast to.
/// `attention` and `execution` may be null: the defaults.
TESSERA_API tsr_status tsr_backward(const tsr_attention* attention, const tsr_backward_tensors* tensors,
                                    const tsr_execution* execution);

// --- plans --------------------------------------------------------------------------------------------

/// The sizes of a problem, when there are no tensors yet. Tensors are taken as contiguous.
typedef struct tsr_shapes {
  size_t struct_size;  ///< Set by TSR_SHAPES_INIT.
  int64_t batch;       ///< Batch entries, or packed sequences if there are lengths; 1 by default.
  int64_t q_length;    ///< Queries (of the longest sequence).
  int64_t k_length;    ///< Keys (of the longest sequence).
  int64_t q_heads;     ///< Query heads; 1 by default.
  int64_t kv_heads;    ///< Key/value heads; 0, the default: as many as query heads.
  int64_t qk_dim;      ///< head_dim of q and k; 64 by default.
  int64_t v_dim;       ///< head_dim of v; 0, the default: as qk_dim.
  tsr_dtype dtype;     ///< Type of the elements; fp32 by default.
  int32_t lse;         ///< Whether forward writes the LSE; 1 by default.
  int32_t bias;        ///< Whether there is a bias (shared by batch and heads, q_length x k_length).
  int32_t reserved;    ///< 0.
} tsr_shapes;

/// The defaults of a tsr_shapes; set `q_length` and `k_length`.
#define TSR_SHAPES_INIT \
  { sizeof(tsr_shapes), 1, 0, 0, 1, 0, 64, 0, TSR_FP32, 1, 0, 0 }

/// A kernel that was not chosen, and why.
typedef struct tsr_rejection {
  const char* kernel;  ///< Its name.
  const char* reason;  ///< What it lacks, or which kernel comes before it.
} tsr_rejection;

/// Holds the texts of a tsr_plan.
typedef struct tsr_plan_storage tsr_plan_storage;

/// What would run, and what it costs. Filled by the tsr_plan_... functions; the texts belong to it and are
/// valid until tsr_plan_release.
typedef struct tsr_plan {
  size_t struct_size;               ///< Set by TSR_PLAN_INIT.
  tsr_plan_storage* storage;        ///< Owned; given back by tsr_plan_release.
  const char* kernel;               ///< Name of the kernel, as TESSERA_KERNEL takes it.
  const char* details;              ///< Further facts about the kernel, one per line.
  tsr_algorithm algorithm;          ///< What the kernel implements.
  tsr_direction direction;          ///< Forward or backward.
  tsr_device device;                ///< Where it runs.
  int64_t block_q;                  ///< Queries per tile.
  int64_t block_k;                  ///< Keys per tile.
  size_t shared_memory_bytes;       ///< Shared memory per thread block (GPU).
  size_t workspace_bytes;           ///< Memory the call takes besides its tensors.
  double flops;                     ///< Floating-point operations, FlashAttention's convention.
  double visible_pairs;             ///< (query, key) pairs that the mask lets through.
  double minimum_bytes;             ///< Every tensor once: no algorithm moves less.
  double traffic_bytes;             ///< Predicted memory traffic of this kernel.
  double standard_traffic_bytes;    ///< Predicted memory traffic of `standard`.
  double standard_workspace_bytes;  ///< Memory that `standard` would take besides the tensors.
  const tsr_rejection* rejected;    ///< Every other kernel for this direction, with the reason.
  size_t rejected_count;            ///< How many there are.
  int32_t threads;                  ///< CPU threads it would use.
  int32_t reserved;                 ///< 0.
} tsr_plan;

/// An empty tsr_plan, ready to be filled.
#define TSR_PLAN_INIT                                                                                       \
  {                                                                                                         \
    sizeof(tsr_plan), NULL, NULL, NULL, 0, 0, {0, 0}, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NULL, 0, 0, \
        0                                                                                                   \
  }

/// The decision that tsr_forward or tsr_backward would take for contiguous tensors of these shapes.
/// With lengths, lengths_max_q and lengths_max_k are needed (the pointers may be null here). `attention` and
/// `execution` may be null: the defaults. Fills `plan`, whose earlier contents must have been released;
/// give it back with tsr_plan_release.
TESSERA_API tsr_status tsr_plan_shapes(const tsr_attention* attention, const tsr_shapes* shapes,
                                       tsr_device device, tsr_direction direction,
                                       const tsr_execution* execution, tsr_plan* plan);

/// The decision that tsr_forward takes for these tensors; as tsr_plan_shapes. Data pointers may be null:
/// nothing is touched.
TESSERA_API tsr_status tsr_plan_forward(const tsr_attention* attention, const tsr_forward_tensors* tensors,
                                        const tsr_execution* execution, tsr_plan* plan);

/// The decision that tsr_backward takes for these tensors; as tsr_plan_shapes. Data pointers may be null:
/// nothing is touched.
TESSERA_API tsr_status tsr_plan_backward(const tsr_attention* attention, const tsr_backward_tensors* tensors,
                                         const tsr_execution* execution, tsr_plan* plan);

/// The plan as text, one fact per line. Text as in tsr_build_info.
TESSERA_API tsr_status tsr_plan_text(const tsr_plan* plan, char* buffer, size_t capacity, size_t* length);

/// Frees what a plan owns and empties it. Null and empty plans are allowed and do nothing. Cannot fail.
TESSERA_API void tsr_plan_release(tsr_plan* plan);

// --- what this build and this machine have --------------------------------------------------------------

/// The kernels in this build, fastest first.
typedef struct tsr_kernel_list tsr_kernel_list;

/// A kernel in this build of the library. Its texts belong to the list.
typedef struct tsr_kernel_info {
  size_t struct_size;           ///< Set by TSR_KERNEL_INFO_INIT.
  const char* name;             ///< As TESSERA_KERNEL takes it.
  const char* const* features;  ///< What it supports, by name: feature_count texts.
  const char* const* missing;   ///< Features of the contract it does not support: missing_count texts.
  size_t feature_count;         ///< How many `features`.
  size_t missing_count;         ///< How many `missing`.
  tsr_algorithm algorithm;      ///< What it implements.
  tsr_direction direction;      ///< Forward or backward.
  tsr_device_type device_type;  ///< Where it runs.
  int32_t reserved;             ///< 0.
} tsr_kernel_info;

/// An empty tsr_kernel_info, ready to be filled.
#define TSR_KERNEL_INFO_INIT \
  { sizeof(tsr_kernel_info), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0 }

/// Makes the list of kernels and says how many there are (`count` may be null). Give it back with
/// tsr_kernel_list_release.
TESSERA_API tsr_status tsr_kernel_list_create(tsr_kernel_list** list, size_t* count);

/// Kernel number `index` of the list.
TESSERA_API tsr_status tsr_kernel_list_get(const tsr_kernel_list* list, size_t index, tsr_kernel_info* info);

/// Frees the list. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_kernel_list_release(tsr_kernel_list* list);

/// The devices of this machine that this build can use; the CPU comes first.
typedef struct tsr_device_list tsr_device_list;

/// A device of this machine. Its texts belong to the list.
typedef struct tsr_device_info {
  size_t struct_size;       ///< Set by TSR_DEVICE_INFO_INIT.
  const char* name;         ///< As the maker calls it.
  const char* description;  ///< Cores and instruction sets, or compute capability and memory.
  tsr_device device;        ///< Which one.
} tsr_device_info;

/// An empty tsr_device_info, ready to be filled.
#define TSR_DEVICE_INFO_INIT                      \
  {                                               \
    sizeof(tsr_device_info), NULL, NULL, { 0, 0 } \
  }

/// Makes the list of devices and says how many there are (`count` may be null). Give it back with
/// tsr_device_list_release.
TESSERA_API tsr_status tsr_device_list_create(tsr_device_list** list, size_t* count);

/// Device number `index` of the list.
TESSERA_API tsr_status tsr_device_list_get(const tsr_device_list* list, size_t index, tsr_device_info* info);

/// Frees the list. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_device_list_release(tsr_device_list* list);

/// The slopes of the ALiBi paper for a number of heads (at least 1), written to slopes[0 .. heads).
TESSERA_API tsr_status tsr_alibi_slopes(int64_t heads, float* slopes);

/// The version of the library that is linked, as "major.minor.patch". Never null.
TESSERA_API const char* tsr_version(void);

/// How the library was built and, where a backend is missing, why; one fact per line.
///
/// Text goes into the caller's buffer, always with a final '\0'. `length` (may be null unless `buffer` is)
/// receives the length without it. With a null `buffer` only the length is given; otherwise `capacity` must
/// exceed the length, else the call fails with TSR_INVALID_ARGUMENT, the buffer untouched and `length` set.
TESSERA_API tsr_status tsr_build_info(char* buffer, size_t capacity, size_t* length);

/// The name of an algorithm, as in "flash2"; "unknown" for any other number. Never null.
TESSERA_API const char* tsr_algorithm_name(tsr_algorithm algorithm);

/// The name of a direction, "forward" or "backward"; "unknown" for any other number. Never null.
TESSERA_API const char* tsr_direction_name(tsr_direction direction);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND
#endif  // TESSERA_CAPI_H
