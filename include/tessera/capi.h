/// \file
/// The C interface: everything of the C++ interface, from C11 and from every language that calls C.
///
/// **Errors.** A function that can fail returns a tsr_status: TSR_OK (0) or the kind of failure.
/// tsr_last_error() returns the text of the calling thread's most recent failure. No exception
/// leaves the library, and it never prints, exits or aborts. After a failure the outputs are
/// untouched, unless the status is TSR_DEVICE_FAILURE or a callback threw: then they may be partly
/// written. A null pointer for a required argument is TSR_INVALID_ARGUMENT, not a crash. Callbacks
/// written in C++ should not throw. If one does, the call ends with TSR_INTERNAL_ERROR or, for
/// std::bad_alloc and std::length_error, TSR_OUT_OF_MEMORY.
///
/// **Structs.** Structs that start with `struct_size` may grow at their end in later versions.
/// Initialise them with their macro, which sets `struct_size` and the defaults, and then set fields
/// by name:
///
///     tsr_attention attention = TSR_ATTENTION_INIT;
///     attention.right = 0;  // causal
///
/// A program built against an older header passes a smaller struct: missing fields take their
/// defaults. A program built against a newer header passes a larger one: the call fails unless
/// every unknown field is zero. tsr_tensor, tsr_device and tsr_rejection never change.
///
/// **Optional arguments.** A null pointer omits an argument; so does a tensor that is all zero.
///
/// **Ownership.** The caller owns tensors, lengths, slopes and all other arrays; the library uses
/// them only during the call. The caller owns every opaque struct that a function returns and
/// releases it with the matching `_release` function. Text is copied into the caller's buffer, see
/// tsr_build_info.
///
/// **Threads.** All functions may be called from several threads at once, also with the same block
/// mask.
///
/// **Environment variables.** The library reads TESSERA_KERNEL, TESSERA_TARGET, TESSERA_BLOCK_K,
/// TESSERA_DECODE_PREFETCH and TESSERA_LAZY_MAXIMUM once, when it is loaded: before main, or in
/// dlopen. tessera.h describes them. Later changes have no effect, so calls are safe beside setenv.
/// OpenBLAS and CUDA read their own variables when a plan or call first needs them. A call that
/// depends on an invalid value fails and names it.
///
/// Enumerations are int32_t, so that their size is fixed and the library can reject unknown values.
#ifndef TESSERA_CAPI_H
#define TESSERA_CAPI_H

// NOLINTBEGIN: this is C
#include <stddef.h>
#include <stdint.h>

#include "tessera/export.h"
#include "tessera/version.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- status --------------------------------------------------------------------------------------

/// How a call ended; 0 is success.
typedef int32_t tsr_status;
enum {
  TSR_OK = 0,                ///< Success.
  TSR_INVALID_ARGUMENT = 1,  ///< An argument is wrong; the text names it, its value and what is allowed.
  TSR_UNSUPPORTED = 2,       ///< No kernel supports the call; the text says what each one requires.
  TSR_OUT_OF_MEMORY = 3,     ///< Out of memory. Nothing is leaked, and the library stays usable.
  TSR_DEVICE_FAILURE = 4,    ///< The device or its driver failed; the text quotes the driver's error.
  TSR_INTERNAL_ERROR = -1    ///< A callback threw, or the library has a bug: please report the text.
};

/// Returns the text of the most recent failure on the calling thread, "" if there was none. Never
/// null. The text is valid until the next failing call of the same thread; a successful call does
/// not change it. Texts longer than 4095 bytes are cut.
TESSERA_API const char* tsr_last_error(void);

/// Returns the name of a status, as in "invalid_argument"; "unknown" for any other number. Never
/// null.
TESSERA_API const char* tsr_status_name(tsr_status status);

// --- tensors -------------------------------------------------------------------------------------

/// The type of one element.
typedef int32_t tsr_dtype;
enum {
  TSR_FP64 = 0,  ///< IEEE binary64 (CPU only); accumulated in fp64.
  TSR_FP32 = 1,  ///< IEEE binary32; accumulated in fp32.
  TSR_FP16 = 2,  ///< IEEE binary16; accumulated in fp32.
  TSR_BF16 = 3,  ///< bfloat16, the upper half of a binary32; accumulated in fp32.
  TSR_BOOL = 4   ///< One byte, 0 or another value; only for `visible`.
};

/// The kind of memory that holds the data.
typedef int32_t tsr_device_type;
enum {
  TSR_CPU = 0,  ///< Host memory.
  TSR_CUDA = 1  ///< Memory of an NVIDIA GPU.
};

/// A device: it holds data and runs kernels. All zero: the CPU.
typedef struct tsr_device {
  tsr_device_type type;  ///< The kind of device.
  int32_t index;         ///< Which device of its kind, as the CUDA runtime counts them; 0 for the CPU.
} tsr_device;

/// A view of the caller's memory with four dimensions. The argument decides what they mean:
///
/// | argument                         | dimensions                                                |
/// |----------------------------------|-----------------------------------------------------------|
/// | q, k, v, out and their gradients | batch, sequence, heads, head_dim                          |
/// | lse, grad_lse                    | batch, heads, sequence, 1                                 |
/// | bias, grad_bias, visible         | batch or 1, heads or 1, query sequence or 1, key sequence |
///
/// Strides count elements and may have any value; inputs may also have zero or negative strides.
/// The last dimension must be contiguous. No two indices of an output may address the same element.
/// When a size is 0 the pointer may be null and the strides may have any value. All zero is an
/// omitted argument.
typedef struct tsr_tensor {
  void* data;          ///< The first element; aligned to the size of one element.
  tsr_dtype dtype;     ///< The type of the elements.
  int32_t read_only;   ///< Not 0: invalid as an output.
  int64_t shape[4];    ///< Sizes, outermost first.
  int64_t strides[4];  ///< Distances in elements, outermost first.
  tsr_device device;   ///< The device that holds `data`.
} tsr_tensor;

/// Makes a view of contiguous host memory, the last dimension innermost; for GPU memory set
/// `device` afterwards. The call that uses the tensor checks it. Strides that overflow 64 bits
/// become INT64_MAX, which that call rejects.
TESSERA_API tsr_tensor tsr_tensor_contiguous(void* data, tsr_dtype dtype, int64_t size0, int64_t size1,
                                             int64_t size2, int64_t size3);

/// The argument that a tensor of another library is meant for.
typedef int32_t tsr_role;
enum {
  TSR_ROLE_TOKENS = 0,  ///< q, k, v, out, gradients: rank 4, or 3 (sequence, heads, head_dim).
  TSR_ROLE_LSE = 1,     ///< lse, grad_lse: rank 4, 3 (batch, heads, sequence) or 2 (heads, sequence).
  TSR_ROLE_BIAS = 2,    ///< bias, grad_bias: rank 1 to 4; missing leading dimensions are 1 (broadcast).
  TSR_ROLE_VISIBLE = 3  ///< visible: as a bias, but boolean.
};

/// Makes a view of the memory that a DLPack tensor describes; copies nothing. `dl_tensor` points to
/// a `DLTensor` (of <dlpack/dlpack.h>, any version), which is read only during the call; its memory
/// must outlive `result`. Accepted types: float of 64, 32 or 16 bits and bfloat of 16 bits, one
/// lane; for TSR_ROLE_VISIBLE bool or uint of 8 bits. Accepted memory: CPU, CUDA, CUDA pinned
/// (counts as CPU) and CUDA managed (counts as its GPU).
TESSERA_API tsr_status tsr_tensor_from_dlpack(const void* dl_tensor, tsr_role role, tsr_tensor* result);

/// Returns the name of an element type, as in "bf16"; "unknown" for any other number. Never null.
TESSERA_API const char* tsr_dtype_name(tsr_dtype dtype);

// --- block masks ---------------------------------------------------------------------------------

/// A block-sparse mask: for each block of queries, the blocks of keys that it keeps. A mask is
/// immutable and reference-counted; a function that makes one returns it with one reference, which
/// the caller owns.
typedef struct tsr_block_mask tsr_block_mask;

/// The sizes of a block mask: the problem that it belongs to, and its blocks.
typedef struct tsr_block_layout {
  size_t struct_size;  ///< Set by TSR_BLOCK_LAYOUT_INIT.
  int64_t q_length;    ///< Number of queries (of the longest sequence when sequences are packed).
  int64_t k_length;    ///< Number of keys (likewise).
  int64_t block_q;     ///< Queries per block, 128 by default; the last block may be shorter.
  int64_t block_k;     ///< Keys per block, 128 by default; the last block may be shorter.
  int64_t heads;       ///< 1, the default: all heads share the mask; else the number of query heads.
} tsr_block_layout;

// clang-format off
/// The defaults of a tsr_block_layout; set `q_length` and `k_length`.
#define TSR_BLOCK_LAYOUT_INIT        \
  { sizeof(tsr_block_layout),        \
    /* q_length, k_length */ 0, 0,   \
    /* block_q, block_k */ 128, 128, \
    /* heads */ 1 }
// clang-format on

/// What a block mask keeps.
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

// clang-format off
/// An empty tsr_block_mask_info, ready to be filled.
#define TSR_BLOCK_MASK_INFO_INIT                           \
  { sizeof(tsr_block_mask_info),                           \
    /* q_length, k_length, block_q, block_k */ 0, 0, 0, 0, \
    /* heads, q_blocks, k_blocks, kept, density */ 0, 0, 0, 0, 0.0 }
// clang-format on

/// Makes a mask from compressed rows. `row_offsets` has heads * q_blocks + 1 entries and starts at
/// 0. Block row r = head * q_blocks + q_block keeps the key blocks columns[row_offsets[r]] up to,
/// not including, columns[row_offsets[r + 1]], strictly ascending. The function copies both arrays.
TESSERA_API tsr_status tsr_block_mask_from_csr(const tsr_block_layout* layout, const int64_t* row_offsets,
                                               size_t row_offset_count, const int32_t* columns,
                                               size_t column_count, tsr_block_mask** mask);

/// Makes a mask from one flag per block: kept[(head * q_blocks + q_block) * k_blocks + k_block].
/// `count` is the number of flags; the function copies them.
TESSERA_API tsr_status tsr_block_mask_from_blocks(const tsr_block_layout* layout, const uint8_t* kept,
                                                  size_t count, tsr_block_mask** mask);

/// Makes a mask from one flag per element, visible[(head * q_length + i) * k_length + j]. A block
/// is kept when all its elements are visible; the call fails when a block is only partly visible.
/// `count` is the number of flags; the function copies them.
TESSERA_API tsr_status tsr_block_mask_from_dense(const tsr_block_layout* layout, const uint8_t* visible,
                                                 size_t count, tsr_block_mask** mask);

/// Keeps the blocks at most `radius` blocks away from the diagonal block.
TESSERA_API tsr_status tsr_block_mask_local(const tsr_block_layout* layout, int64_t radius,
                                            tsr_block_mask** mask);

/// Sparse Transformer, strided: keeps the blocks fewer than `stride` blocks away from the diagonal
/// block and those a multiple of `stride` blocks away.
TESSERA_API tsr_status tsr_block_mask_strided(const tsr_block_layout* layout, int64_t stride,
                                              tsr_block_mask** mask);

/// Sparse Transformer, fixed: keeps the group of `stride` blocks that holds the diagonal block, and
/// the last `summary` blocks (usually 1) of every group.
TESSERA_API tsr_status tsr_block_mask_fixed(const tsr_block_layout* layout, int64_t stride, int64_t summary,
                                            tsr_block_mask** mask);

/// BigBird: keeps the blocks of `local` with `radius`, the first `global` block rows and columns,
/// and `random` further blocks per row, chosen by `seed`.
TESSERA_API tsr_status tsr_block_mask_big_bird(const tsr_block_layout* layout, int64_t radius, int64_t global,
                                               int64_t random, uint64_t seed, tsr_block_mask** mask);

/// Butterfly: keeps the diagonal block and the blocks whose index differs from its index in one
/// bit.
TESSERA_API tsr_status tsr_block_mask_butterfly(const tsr_block_layout* layout, tsr_block_mask** mask);

/// Keeps a share `density` in (0, 1] of all blocks, spread evenly over the rows; each head has its
/// own blocks, chosen by `seed`.
TESSERA_API tsr_status tsr_block_mask_random(const tsr_block_layout* layout, double density, uint64_t seed,
                                             tsr_block_mask** mask);

/// Adds a reference. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_block_mask_retain(tsr_block_mask* mask);

/// Drops a reference; the last one frees the mask. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_block_mask_release(tsr_block_mask* mask);

/// Copies the mask to a GPU now; otherwise the first call on that GPU does. Does nothing for the
/// CPU. The copy lives as long as the mask: keep a reference while a captured CUDA graph is
/// replayed.
TESSERA_API tsr_status tsr_block_mask_prepare(const tsr_block_mask* mask, tsr_device device);

/// Fills `info` with the sizes of a mask and how much it keeps.
TESSERA_API tsr_status tsr_block_mask_describe(const tsr_block_mask* mask, tsr_block_mask_info* info);

/// Returns the key blocks that block row `q_block` keeps, ascending. `indices` then points into the
/// mask and stays valid as long as the caller holds a reference; it may be null when `count` is 0.
TESSERA_API tsr_status tsr_block_mask_row(const tsr_block_mask* mask, int64_t head, int64_t q_block,
                                          const int32_t** indices, size_t* count);

/// Returns the query blocks that keep `k_block`, ascending, as tsr_block_mask_row does.
TESSERA_API tsr_status tsr_block_mask_column(const tsr_block_mask* mask, int64_t head, int64_t k_block,
                                             const int32_t** indices, size_t* count);

/// Draws the mask of one head: per block row one line of '#' (kept) and '.'. Text as in
/// tsr_build_info.
TESSERA_API tsr_status tsr_block_mask_draw(const tsr_block_mask* mask, int64_t head, char* buffer,
                                           size_t capacity, size_t* length);

// --- the operation -------------------------------------------------------------------------------

/// How attention is computed. All algorithms give the same result within rounding.
typedef int32_t tsr_algorithm;
enum {
  TSR_AUTOMATIC = 0,  ///< The fastest algorithm that supports the call.
  TSR_STANDARD = 1,   ///< Separate passes over an N x N matrix, with the best GEMM available.
  TSR_FLASH1 = 2,     ///< Tiles; the outer loop is over keys.
  TSR_FLASH2 = 3,     ///< Tiles; the outer loop is over queries.
  TSR_FLASH3 = 4,     ///< flash2 as an asynchronous pipeline; requires a GPU of compute capability 9.0.
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

/// The operation, without the data:
///
///     O = dropout(softmax(softcap(scale * Q K^T) + bias + alibi + mask)) V
///
/// Column j is visible to row i when three conditions hold: i + d - left <= j <= i + d + right,
/// where -1 means no bound; the block of (i, j) is kept; both belong to the same packed sequence. d
/// is the diagonal. A row without visible keys gives 0.
typedef struct tsr_attention {
  size_t struct_size;                ///< Set by TSR_ATTENTION_INIT.
  int32_t has_scale;                 ///< Not 0: use `scale`. 0, the default: 1 / sqrt(head_dim of q).
  int32_t has_diagonal;              ///< Not 0: use `diagonal`. 0, the default: `align` decides.
  double scale;                      ///< Factor on Q K^T, when `has_scale`: 0, or 2^-100 to 2^100 in
                                     ///< magnitude (fp64: 2^-1000 to 2^1000).
  double softcap;                    ///< cap * tanh(s / cap) on the scaled scores; 0: off. softcap
                                     ///< and scale / softcap have the range of scale.
  int64_t left;                      ///< Visible keys before the diagonal; -1, the default: all.
  int64_t right;                     ///< Visible keys after it; -1, the default: all; 0: causal.
  int64_t diagonal;                  ///< An explicit d in global positions, when `has_diagonal`.
  tsr_align align;                   ///< Where the diagonal lies, unless `has_diagonal`.
  tsr_algorithm algorithm;           ///< How attention is computed.
  const tsr_block_mask* block_mask;  ///< Kept blocks; null: all. Used only during the call.
  const int32_t* lengths_q;          ///< Packed sequences: lengths_count + 1 cumulative lengths from 0,
  const int32_t* lengths_k;          ///< on the device of the data; the tensors have a batch of 1.
  int64_t lengths_count;             ///< Number of packed sequences; 0: a plain batch.
  int64_t lengths_max_q;             ///< At least the longest query sequence; 0: read lengths_q (CPU).
  int64_t lengths_max_k;             ///< At least the longest key sequence; 0: read lengths_k (CPU).
  const float* alibi_slopes;         ///< -slope * |i + d - j|: one slope per query head; null: off.
                                     ///< A diagonal other than bottom_right must be less than 2^29
                                     ///< away from 0.
  int64_t alibi_batch_stride;        ///< Distance between the slopes of two batch entries; 0: shared.
  double dropout_probability;        ///< In [0, 1 - 2^-16), rounded to steps of 2^-15; 0: off. Kept
                                     ///< probabilities are divided by 1 minus the rounded value.
  uint64_t dropout_seed;             ///< Selects the random bits, together with `dropout_offset`.
  uint64_t dropout_offset;           ///< A training loop increments it each step.
  const uint64_t* dropout_state;     ///< {seed, offset} in memory of the data's device, read when the
                                     ///< kernel runs; null: use the two values above.
  int64_t origin_row;                ///< Global index of query 0, for a shard of a longer sequence.
  int64_t origin_column;             ///< Global index of key 0.
  int64_t origin_batch;              ///< Global index of batch entry 0.
  int64_t origin_head;               ///< Global index of query head 0.
  int32_t deterministic;             ///< Not 0: makes backward bitwise reproducible on GPUs, too.
  int32_t reserved;                  ///< 0.
} tsr_attention;

// clang-format off
/// The defaults of a tsr_attention: no mask, every query attends to every key.
#define TSR_ATTENTION_INIT                                           \
  { sizeof(tsr_attention),                                           \
    /* has_scale, has_diagonal */ 0, 0,                              \
    /* scale, softcap */ 0.0, 0.0,                                   \
    /* left, right, diagonal */ -1, -1, 0,                           \
    /* align, algorithm */ TSR_BOTTOM_RIGHT, TSR_AUTOMATIC,          \
    /* block_mask */ NULL,                                           \
    /* lengths: q, k, count, max_q, max_k */ NULL, NULL, 0, 0, 0,    \
    /* alibi: slopes, batch_stride */ NULL, 0,                       \
    /* dropout: probability, seed, offset, state */ 0.0, 0, 0, NULL, \
    /* origin: row, column, batch, head */ 0, 0, 0, 0,               \
    /* deterministic, reserved */ 0, 0 }
// clang-format on

/// The tensors of a forward call. Query head h reads key/value head h / (Hq / Hkv).
typedef struct tsr_forward_tensors {
  size_t struct_size;      ///< Set by TSR_FORWARD_TENSORS_INIT.
  const tsr_tensor* q;     ///< (batch, Nq, Hq, d_qk)
  const tsr_tensor* k;     ///< (batch, Nk, Hkv, d_qk); Hkv divides Hq.
  const tsr_tensor* v;     ///< (batch, Nk, Hkv, d_v)
  const tsr_tensor* bias;  ///< Optional: (batch|1, Hq|1, Nq|1, Nk), the type of q or its accumulator type.
  const tsr_tensor* out;   ///< Written: (batch, Nq, Hq, d_v)
  const tsr_tensor* lse;   ///< Optional, written: (batch, Hq, Nq, 1) in fp32 (fp64 for fp64).
  /// Optional: (batch|1, Hq|1, Nq|1, Nk), TSR_BOOL. A query may attend to a key where the element
  /// is not 0 and the mask of the tsr_attention allows it, too. CPU only.
  const tsr_tensor* visible;
} tsr_forward_tensors;

// clang-format off
/// No tensors yet.
#define TSR_FORWARD_TENSORS_INIT                \
  { sizeof(tsr_forward_tensors),                \
    /* q, k, v, bias */ NULL, NULL, NULL, NULL, \
    /* out, lse, visible */ NULL, NULL, NULL }
// clang-format on

/// The tensors of a backward call. Only the gradients whose tensors are given are computed; at
/// least one is required.
typedef struct tsr_backward_tensors {
  size_t struct_size;           ///< Set by TSR_BACKWARD_TENSORS_INIT.
  const tsr_tensor* q;          ///< As passed to forward.
  const tsr_tensor* k;          ///< As passed to forward.
  const tsr_tensor* v;          ///< As passed to forward.
  const tsr_tensor* bias;       ///< As passed to forward.
  const tsr_tensor* out;        ///< The output of forward.
  const tsr_tensor* lse;        ///< The LSE of forward.
  const tsr_tensor* grad_out;   ///< Gradient of `out`.
  const tsr_tensor* grad_lse;   ///< Optional: gradient of `lse`, same shape and type.
  const tsr_tensor* grad_q;     ///< Written, shape and type of q.
  const tsr_tensor* grad_k;     ///< Written, shape and type of k.
  const tsr_tensor* grad_v;     ///< Written, shape and type of v.
  const tsr_tensor* grad_bias;  ///< Written, shape and type of bias: the sum over the broadcast dimensions.
  const tsr_tensor* visible;    ///< As passed to forward.
} tsr_backward_tensors;

// clang-format off
/// No tensors yet.
#define TSR_BACKWARD_TENSORS_INIT                              \
  { sizeof(tsr_backward_tensors),                              \
    /* q, k, v, bias */ NULL, NULL, NULL, NULL,                \
    /* out, lse, grad_out, grad_lse */ NULL, NULL, NULL, NULL, \
    /* grad_q, grad_k, grad_v, grad_bias */ NULL, NULL, NULL, NULL, \
    /* visible */ NULL }
// clang-format on

// --- execution -----------------------------------------------------------------------------------

/// Runs the parallel parts of CPU kernels on the caller's own threads.
typedef struct tsr_executor {
  size_t struct_size;  ///< Set by TSR_EXECUTOR_INIT.
  void* context;       ///< Passed to both functions.
  /// Returns how many workers are worth starting: from 1 to 4096.
  int (*concurrency)(void* context);
  /// Calls body(body_context, w) once for every w in [0, workers) and returns when all calls have
  /// returned. The calls may run on any threads, in any order, concurrently or not.
  void (*run)(void* context, int workers, void (*body)(void* body_context, int worker), void* body_context);
} tsr_executor;

// clang-format off
/// An executor without functions; set both.
#define TSR_EXECUTOR_INIT \
  { sizeof(tsr_executor), /* context, concurrency, run */ NULL, NULL, NULL }
// clang-format on

/// Supplies workspace. It must be thread-safe when several threads make calls.
typedef struct tsr_allocator {
  size_t struct_size;  ///< Set by TSR_ALLOCATOR_INIT.
  void* context;       ///< Passed to both functions.
  /// Returns `bytes` (> 0) of device memory aligned to `alignment` (a power of two), or null when
  /// out of memory. `stream` is the call's stream (null on the CPU).
  void* (*allocate)(void* context, size_t bytes, size_t alignment, void* stream);
  /// Frees memory that `allocate` returned; the sizes are the same.
  void (*deallocate)(void* context, void* data, size_t bytes, size_t alignment, void* stream);
} tsr_allocator;

// clang-format off
/// An allocator without functions; set both.
#define TSR_ALLOCATOR_INIT \
  { sizeof(tsr_allocator), /* context, allocate, deallocate */ NULL, NULL, NULL }
// clang-format on

/// Where a call runs and which resources it uses. No field changes a result.
typedef struct tsr_execution {
  size_t struct_size;              ///< Set by TSR_EXECUTION_INIT.
  const tsr_executor* executor;    ///< The caller's threads; null: the library's pool.
  const tsr_allocator* allocator;  ///< Supplies workspace; null: host memory or a pool of the GPU.
  void* stream;                    ///< The cudaStream_t to launch on (CUDA only).
  void* workspace;         ///< Workspace that the caller lends, aligned to 256 bytes; null: allocated.
  size_t workspace_bytes;  ///< Its size: at least tsr_plan.workspace_bytes.
  int32_t threads;         ///< CPU threads; 0: as many as the executor has, or as the process may use.
  int32_t reserved;        ///< 0.
} tsr_execution;

// clang-format off
/// The defaults of a tsr_execution: all cores, the library's thread pool and allocator.
#define TSR_EXECUTION_INIT                              \
  { sizeof(tsr_execution),                              \
    /* executor, allocator, stream */ NULL, NULL, NULL, \
    /* workspace, workspace_bytes */ NULL, 0,           \
    /* threads, reserved */ 0, 0 }
// clang-format on

// --- the calls -----------------------------------------------------------------------------------

/// Computes attention. It overwrites all elements of the outputs; a row without visible keys gives
/// 0 and an LSE of -infinity. On the CPU the call returns when the result is complete; on a GPU it
/// enqueues work on `execution->stream` and returns. `attention` and `execution` may be null: the
/// defaults.
///
/// The result is bitwise reproducible: a row depends only on its own head of its own sequence, not
/// on the rest of the call or on `execution`. tessera::forward in attention.h states the whole
/// contract: two exceptions on GPUs, the range of inputs, and non-finite inputs. The calling
/// thread's floating-point environment has no influence, and the call restores it.
TESSERA_API tsr_status tsr_forward(const tsr_attention* attention, const tsr_forward_tensors* tensors,
                                   const tsr_execution* execution);

/// Computes the gradients of tsr_forward by recomputation, from q, k, v, out and lse of the same
/// description. The same promises hold, on GPUs when `deterministic` is set. Gradients of keys and
/// values are sums over the query heads of a group; the gradient of a bias is a sum over the
/// broadcast dimensions. `attention` and `execution` may be null: the defaults.
TESSERA_API tsr_status tsr_backward(const tsr_attention* attention, const tsr_backward_tensors* tensors,
                                    const tsr_execution* execution);

// --- plans ---------------------------------------------------------------------------------------

/// The sizes of a problem, before its tensors exist. The tensors count as contiguous.
typedef struct tsr_shapes {
  size_t struct_size;  ///< Set by TSR_SHAPES_INIT.
  int64_t batch;       ///< Batch entries; packed sequences with lengths; 1 by default.
  int64_t q_length;    ///< Queries (of the longest sequence).
  int64_t k_length;    ///< Keys (of the longest sequence).
  int64_t q_heads;     ///< Query heads; 1 by default.
  int64_t kv_heads;    ///< Key/value heads; 0, the default: equal to `q_heads`.
  int64_t qk_dim;      ///< head_dim of q and k; 64 by default.
  int64_t v_dim;       ///< head_dim of v; 0, the default: equal to `qk_dim`.
  tsr_dtype dtype;     ///< Type of the elements; fp32 by default.
  int32_t lse;         ///< Whether forward writes the LSE; 1 by default.
  int32_t bias;        ///< Whether the call has a bias, q_length x k_length, shared by batch and heads.
  int32_t visible;     ///< Whether it has a boolean mask of that shape; costs count every element as true.
} tsr_shapes;

// clang-format off
/// The defaults of a tsr_shapes; set `q_length` and `k_length`.
#define TSR_SHAPES_INIT                      \
  { sizeof(tsr_shapes),                      \
    /* batch, q_length, k_length */ 1, 0, 0, \
    /* q_heads, kv_heads */ 1, 0,            \
    /* qk_dim, v_dim */ 64, 0,               \
    /* dtype, lse, bias, visible */ TSR_FP32, 1, 0, 0 }
// clang-format on

/// A kernel that was not chosen, with the reason.
typedef struct tsr_rejection {
  const char* kernel;  ///< Its name.
  const char* reason;  ///< What it requires, or which kernel is preferred.
} tsr_rejection;

/// Holds the texts of a tsr_plan.
typedef struct tsr_plan_storage tsr_plan_storage;

/// The kernel that a call would run, and its cost. The tsr_plan_... functions fill it; it owns its
/// texts, which are valid until tsr_plan_release.
typedef struct tsr_plan {
  size_t struct_size;               ///< Set by TSR_PLAN_INIT.
  tsr_plan_storage* storage;        ///< Owned; freed by tsr_plan_release.
  const char* kernel;               ///< Name of the kernel, as TESSERA_KERNEL expects it.
  const char* details;              ///< Further facts about the kernel, one per line.
  tsr_algorithm algorithm;          ///< The algorithm that the kernel implements.
  tsr_direction direction;          ///< Forward or backward.
  tsr_device device;                ///< The device that runs it.
  int64_t block_q;                  ///< Queries per tile.
  int64_t block_k;                  ///< Keys per tile.
  size_t shared_memory_bytes;       ///< Shared memory per thread block (GPU).
  size_t workspace_bytes;           ///< Temporary memory of the call.
  double flops;                     ///< Floating-point operations, by FlashAttention's convention.
  double visible_pairs;             ///< (query, key) pairs that the mask leaves visible.
  double minimum_bytes;             ///< Size of all tensors: no algorithm moves less.
  double traffic_bytes;             ///< Predicted memory traffic of this kernel.
  double standard_traffic_bytes;    ///< Predicted memory traffic of `standard`.
  double standard_workspace_bytes;  ///< Temporary memory of `standard`.
  const tsr_rejection* rejected;    ///< The other kernels for this direction, with reasons.
  size_t rejected_count;            ///< The number of entries of `rejected`.
  int32_t threads;                  ///< CPU threads that it would use.
  int32_t reserved;                 ///< 0.
} tsr_plan;

// clang-format off
/// An empty tsr_plan, ready to be filled.
#define TSR_PLAN_INIT                                                            \
  { sizeof(tsr_plan),                                                            \
    /* storage, kernel, details */ NULL, NULL, NULL,                             \
    /* algorithm, direction, device */ TSR_AUTOMATIC, TSR_FORWARD, {TSR_CPU, 0}, \
    /* block_q, block_k */ 0, 0,                                                 \
    /* shared_memory_bytes, workspace_bytes */ 0, 0,                             \
    /* flops, visible_pairs */ 0.0, 0.0,                                         \
    /* bytes: minimum, traffic */ 0.0, 0.0,                                      \
    /* of standard: traffic, workspace */ 0.0, 0.0,                              \
    /* rejected, rejected_count */ NULL, 0,                                      \
    /* threads, reserved */ 0, 0 }
// clang-format on

/// Fills `plan` with the plan that tsr_forward or tsr_backward would follow for contiguous tensors
/// of these shapes. With lengths, lengths_max_q and lengths_max_k are required; the pointers may be
/// null here. `attention` and `execution` may be null: the defaults. The caller releases earlier
/// contents of `plan` before the call, and the new ones with tsr_plan_release.
TESSERA_API tsr_status tsr_plan_shapes(const tsr_attention* attention, const tsr_shapes* shapes,
                                       tsr_device device, tsr_direction direction,
                                       const tsr_execution* execution, tsr_plan* plan);

/// Fills `plan` with the plan that tsr_forward follows for these tensors, as tsr_plan_shapes does.
/// It reads no data, so pointers may be null.
TESSERA_API tsr_status tsr_plan_forward(const tsr_attention* attention, const tsr_forward_tensors* tensors,
                                        const tsr_execution* execution, tsr_plan* plan);

/// Fills `plan` with the plan that tsr_backward follows for these tensors, as tsr_plan_shapes does.
/// It reads no data, so pointers may be null.
TESSERA_API tsr_status tsr_plan_backward(const tsr_attention* attention, const tsr_backward_tensors* tensors,
                                         const tsr_execution* execution, tsr_plan* plan);

/// Writes the plan as text, one fact per line. Text as in tsr_build_info.
TESSERA_API tsr_status tsr_plan_text(const tsr_plan* plan, char* buffer, size_t capacity, size_t* length);

/// Frees the contents of a plan and empties it. Does nothing for null and for an empty plan. Cannot
/// fail.
TESSERA_API void tsr_plan_release(tsr_plan* plan);

// --- what this build and this machine have -------------------------------------------------------

/// The kernels of this build, in order of preference.
typedef struct tsr_kernel_list tsr_kernel_list;

/// A kernel of this build. The list owns its texts.
typedef struct tsr_kernel_info {
  size_t struct_size;           ///< Set by TSR_KERNEL_INFO_INIT.
  const char* name;             ///< As TESSERA_KERNEL expects it.
  const char* const* features;  ///< The features that it supports, by name: feature_count texts.
  const char* const* missing;   ///< The features that it does not support: missing_count texts.
  size_t feature_count;         ///< The number of `features`.
  size_t missing_count;         ///< The number of `missing`.
  tsr_algorithm algorithm;      ///< The algorithm that it implements.
  tsr_direction direction;      ///< Forward or backward.
  tsr_device_type device_type;  ///< The kind of device that runs it.
  int32_t reserved;             ///< 0.
} tsr_kernel_info;

// clang-format off
/// An empty tsr_kernel_info, ready to be filled.
#define TSR_KERNEL_INFO_INIT                               \
  { sizeof(tsr_kernel_info),                               \
    /* name, features, missing */ NULL, NULL, NULL,        \
    /* feature_count, missing_count */ 0, 0,               \
    /* algorithm, direction */ TSR_AUTOMATIC, TSR_FORWARD, \
    /* device_type, reserved */ TSR_CPU, 0 }
// clang-format on

/// Makes the list of kernels and sets `count`, which may be null, to their number. Release the list
/// with tsr_kernel_list_release.
TESSERA_API tsr_status tsr_kernel_list_create(tsr_kernel_list** list, size_t* count);

/// Fills `info` with kernel number `index` of the list.
TESSERA_API tsr_status tsr_kernel_list_get(const tsr_kernel_list* list, size_t index, tsr_kernel_info* info);

/// Frees the list. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_kernel_list_release(tsr_kernel_list* list);

/// The devices of this machine that this build can use; the CPU comes first.
typedef struct tsr_device_list tsr_device_list;

/// A device of this machine. The list owns its texts.
typedef struct tsr_device_info {
  size_t struct_size;       ///< Set by TSR_DEVICE_INFO_INIT.
  const char* name;         ///< The product name.
  const char* description;  ///< Cores and instruction sets, or compute capability and memory.
  tsr_device device;        ///< The device.
} tsr_device_info;

// clang-format off
/// An empty tsr_device_info, ready to be filled.
#define TSR_DEVICE_INFO_INIT            \
  { sizeof(tsr_device_info),            \
    /* name, description */ NULL, NULL, \
    /* device */ {TSR_CPU, 0} }
// clang-format on

/// Makes the list of devices and sets `count`, which may be null, to their number. Release the list
/// with tsr_device_list_release.
TESSERA_API tsr_status tsr_device_list_create(tsr_device_list** list, size_t* count);

/// Fills `info` with device number `index` of the list.
TESSERA_API tsr_status tsr_device_list_get(const tsr_device_list* list, size_t index, tsr_device_info* info);

/// Frees the list. Null is allowed and does nothing. Cannot fail.
TESSERA_API void tsr_device_list_release(tsr_device_list* list);

/// Writes the slopes of the ALiBi paper for 1 to 2^20 heads to slopes[0 .. heads).
TESSERA_API tsr_status tsr_alibi_slopes(int64_t heads, float* slopes);

/// Returns the version of the linked library as "major.minor.patch". Never null.
TESSERA_API const char* tsr_version(void);

/// Writes how the library was built and why a missing backend is missing, one fact per line.
///
/// **Text.** The function writes the text and a final '\0' into the caller's buffer and the length
/// without it to `length`. With a null `buffer` it writes only the length; then `length` must not
/// be null. Otherwise `capacity` must exceed the length: if not, the call fails with
/// TSR_INVALID_ARGUMENT, sets `length` and leaves the buffer untouched.
TESSERA_API tsr_status tsr_build_info(char* buffer, size_t capacity, size_t* length);

/// Returns the name of an algorithm, as in "flash2"; "unknown" for any other number. Never null.
TESSERA_API const char* tsr_algorithm_name(tsr_algorithm algorithm);

/// Returns the name of a direction, "forward" or "backward"; "unknown" for any other number. Never
/// null.
TESSERA_API const char* tsr_direction_name(tsr_direction direction);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND
#endif  // TESSERA_CAPI_H
