#include "cuda/baselines/standard/cublas.h"

#if TESSERA_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "core/base/dynamic_library.h"
#include "core/base/immortal.h"
#include "core/base/out_of_memory.h"
#include "core/base/text.h"
#include "cuda/common/host/context.h"
#include "cuda/common/host/device.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

// The part of cuBLAS that is used here, declared so that the build does not need its headers.
// Enumerators have fixed values.
using Handle = void*;
using Status = int;
constexpr int kNoTranspose = 0, kTranspose = 1;
constexpr int kCompute32 = 68;         // CUBLAS_COMPUTE_32F: no TF32 unless a math mode asks for it
constexpr int kDefaultAlgorithm = -1;  // CUBLAS_GEMM_DEFAULT
constexpr int kNoReducedPrecisionReduction = 16;  // partial sums of 16-bit products also stay fp32

struct Library {
  Status (*create)(Handle*) = nullptr;
  Status (*destroy)(Handle) = nullptr;
  Status (*set_stream)(Handle, cudaStream_t) = nullptr;
  Status (*set_workspace)(Handle, void*, std::size_t) = nullptr;
  Status (*set_math_mode)(Handle, int) = nullptr;
  Status (*get_property)(libraryPropertyType, int*) = nullptr;
  const char* (*status_string)(Status) = nullptr;
  Status (*gemm)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType, int, long long,
                 const void*, cudaDataType, int, long long, const void*, void*, cudaDataType, int, long long,
                 int, int, int) = nullptr;
  std::string missing;
};

// The loader's own rules come first, which also find a library that the process has already loaded;
// then the places where CUDA installs it. The version that this library was built with comes first.
bool open_library(core::DynamicLibrary& file) {
  constexpr int kBuiltWith = CUDART_VERSION / 1000;
  for (const int version : {kBuiltWith, 13, 12}) {
    if (file.open(core::concat("libcublas.so.", version),
                  {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/", "/opt/cuda/lib64/"})) {
      return true;
    }
  }
  return false;
}

Library load() {
  Library library;
  core::DynamicLibrary file;
  if (!open_library(file)) {
    library.missing =
        "cuBLAS (libcublas.so.13 or .12) is not installed, or not where the loader looks for it";
    return library;
  }
  file.find(library.create, "cublasCreate_v2");
  file.find(library.destroy, "cublasDestroy_v2");
  file.find(library.set_stream, "cublasSetStream_v2");
  file.find(library.set_workspace, "cublasSetWorkspace_v2");
  file.find(library.set_math_mode, "cublasSetMathMode");
  file.find(library.get_property, "cublasGetProperty");
  file.find(library.status_string, "cublasGetStatusString");
  file.find(library.gemm, "cublasGemmStridedBatchedEx");
  library.missing = file.missing();
  return library;
}

const Library& library() {
  static const Library& loaded = core::immortal(load);
  return loaded;
}

void check_cublas(Status status, const char* what) {
  if (status == 0) return;
  core::fail(ErrorCode::device_failure, what, ": ", library().status_string(status));
}

// The unused handles, by context, in which alone a handle works. A call takes one and returns it,
// because a handle is bound to one stream and to one thread at a time. Handles live as long as the
// process; those of a context that the caller destroys are never used again.
struct Pool {
  std::mutex mutex;
  std::vector<std::pair<std::uint64_t, Handle>> free;
};

Pool& pool() {
  static Pool& instance = core::immortal([] { return Pool(); });
  return instance;
}

Handle create_handle() {
  // Creating a handle allocates. A capture in this thread would forbid that, although it has
  // nothing to do with what is captured.
  const OutsideCapture scope;
  Handle handle = nullptr;
  check_cublas(library().create(&handle), "cublasCreate");
  if (const Status status = library().set_math_mode(handle, kNoReducedPrecisionReduction); status != 0) {
    library().destroy(handle);
    check_cublas(status, "cublasSetMathMode");
  }
  return handle;
}

Handle take_handle(std::uint64_t context) {
  {
    const std::lock_guard lock(pool().mutex);
    auto& free = pool().free;
    const auto found =
        std::find_if(free.begin(), free.end(), [&](const auto& one) { return one.first == context; });
    if (found != free.end()) {
      const Handle handle = found->second;
      free.erase(found);
      return handle;
    }
  }
  return create_handle();
}

cudaDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::fp16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

std::byte* at(const BatchedMatrix& m, const std::array<std::int64_t, 3>& index) {
  std::int64_t offset = 0;
  for (int d = 0; d < 3; ++d) offset += index[d] * m.stride[d];
  return static_cast<std::byte*>(m.data) + offset * static_cast<std::int64_t>(size_of(m.dtype));
}

// Merges two neighbouring dimensions where all operands step through them evenly.
void merge_dimensions(BatchedProduct& p) {
  for (int d = 1; d >= (p.each_sequence ? 1 : 0); --d) {
    bool even = true;
    for (BatchedMatrix* m : {&p.a, &p.b, &p.c}) {
      if (p.batch[d + 1] == 1) m->stride[d + 1] = m->stride[d];
      even = even && m->stride[d] == m->stride[d + 1] * p.batch[d + 1];
    }
    if (!even && p.batch[d] != 1) continue;
    p.batch[d + 1] *= p.batch[d];
    p.batch[d] = 1;
  }
}

// The dimension that one call of cuBLAS covers: the longest whose strides it accepts.
int strided_dimension(const BatchedProduct& p) {
  int best = 2;
  std::int64_t most = 0;
  for (int d = p.each_sequence ? 1 : 0; d < 3; ++d) {
    const bool usable = p.a.stride[d] >= 0 && p.b.stride[d] >= 0 && p.c.stride[d] >= 0;
    const std::int64_t count = usable ? p.batch[d] : 1;
    if (count > most) best = d, most = count;
  }
  return best;
}

}  // namespace

const std::string& cublas_missing() { return library().missing; }

std::string cublas_description() {
  if (!library().missing.empty()) return {};
  int part[3] = {};
  library().get_property(MAJOR_VERSION, &part[0]);
  library().get_property(MINOR_VERSION, &part[1]);
  library().get_property(PATCH_LEVEL, &part[2]);
  return core::concat("cuBLAS ", part[0], ".", part[1], ".", part[2]);
}

Cublas::Lease::Lease() : context(current_context_id()), handle(take_handle(context)) {}

Cublas::Lease::~Lease() {
  const std::lock_guard lock(pool().mutex);
  pool().free.emplace_back(context, handle);
}

Cublas::Cublas(void* stream, void* workspace, std::size_t workspace_bytes) {
  // In this order: setting the stream resets the workspace.
  check_cublas(library().set_stream(lease_.handle, static_cast<cudaStream_t>(stream)), "cublasSetStream");
  check_cublas(library().set_workspace(lease_.handle, workspace, workspace_bytes), "cublasSetWorkspace");
}

void Cublas::multiply(const BatchedProduct& product) const {
  // Older versions put the batch into one dimension of a grid.
  constexpr std::int64_t kMostPerCall = 65535;
  BatchedProduct p = product;
  merge_dimensions(p);
  const int strided = strided_dimension(p);
  std::array<std::int64_t, 3> step{1, 1, 1};
  step[strided] = kMostPerCall;
  auto operation = [](Transpose t) { return t == Transpose::yes ? kTranspose : kNoTranspose; };
  // cuBLAS is column-major: it computes C^T = B^T A^T.
  auto call = [&](const std::array<std::int64_t, 3>& index, int count) {
    check_cublas(library().gemm(lease_.handle, operation(p.b_transposed), operation(p.a_transposed),
                                static_cast<int>(p.columns), static_cast<int>(p.rows),
                                static_cast<int>(p.depth), &p.alpha, at(p.b, index), type_of(p.b.dtype),
                                static_cast<int>(p.b.row_stride), p.b.stride[strided], at(p.a, index),
                                type_of(p.a.dtype), static_cast<int>(p.a.row_stride), p.a.stride[strided],
                                &p.beta, at(p.c, index), type_of(p.c.dtype), static_cast<int>(p.c.row_stride),
                                p.c.stride[strided], count, kCompute32, kDefaultAlgorithm),
                 "cublasGemmStridedBatchedEx");
  };
  for (std::int64_t i = 0; i < p.batch[0]; i += step[0]) {
    for (std::int64_t j = 0; j < p.batch[1]; j += step[1]) {
      for (std::int64_t k = 0; k < p.batch[2]; k += step[2]) {
        const std::array<std::int64_t, 3> index{i, j, k};
        const std::int64_t left = p.batch[strided] - index[strided];
        call(index, static_cast<int>(std::min(left, kMostPerCall)));
      }
    }
  }
}

}  // namespace tessera::cuda

#endif
