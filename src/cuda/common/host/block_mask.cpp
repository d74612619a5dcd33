#include "cuda/common/host/block_mask.h"

#include <cstring>
#include <memory>
#include <vector>

#include "core/base/out_of_memory.h"
#include "core/block_mask.h"
#include "cuda/common/host/gpus.h"

#if TESSERA_HAVE_CUDA
#include "cuda/common/host/device.h"
#endif

namespace tessera::cuda {

#if TESSERA_HAVE_CUDA

namespace {

class PrivateStream {
 public:
  PrivateStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~PrivateStream() { cudaStreamDestroy(stream_); }
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;

  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// The four arrays of a mask, one after the other: the wide ones first, so that all are aligned.
class UploadedBlocks final : public core::DeviceBlocks {
 public:
  UploadedBlocks(const BlockMask::Data& data, const core::BlockView& host, int device)
      : DeviceBlocks(host), device_(device) {
    const DeviceScope scope(device);
    const std::size_t row_offsets = data.row_offsets.size() * sizeof(std::int64_t);
    const std::size_t column_offsets = data.column_offsets.size() * sizeof(std::int64_t);
    const std::size_t indices = data.columns.size() * sizeof(std::int32_t);
    std::vector<std::byte> packed(row_offsets + column_offsets + 2 * indices);
    auto put = [&, at = packed.data()](const void* source, std::size_t bytes) mutable {
      if (bytes > 0) std::memcpy(at, source, bytes);
      at += bytes;
    };
    put(data.row_offsets.data(), row_offsets);
    put(data.column_offsets.data(), column_offsets);
    put(data.columns.data(), indices);
    put(data.rows.data(), indices);

    const OutsideCapture outside;
    const PrivateStream stream;
    if (const cudaError_t status = cudaMalloc(&memory_, packed.size()); status != cudaSuccess) {
      if (status != cudaErrorMemoryAllocation) check(status, "cudaMalloc");
      forget(status);
      core::fail(ErrorCode::out_of_memory, "no ", packed.size(),
                 " bytes of GPU memory for the copy of a block mask");
    }
    cudaError_t status =
        cudaMemcpyAsync(memory_, packed.data(), packed.size(), cudaMemcpyHostToDevice, stream.get());
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream.get());
    if (status != cudaSuccess) cudaFree(memory_);  // the destructor does not run when this throws
    check(status, "copying a block mask to the GPU");

    auto* at = static_cast<std::byte*>(memory_);
    view.row_offsets = reinterpret_cast<const std::int64_t*>(at);
    view.column_offsets = reinterpret_cast<const std::int64_t*>(at += row_offsets);
    view.columns = reinterpret_cast<const std::int32_t*>(at += column_offsets);
    view.rows = reinterpret_cast<const std::int32_t*>(at += indices);
  }

  // Waits for kernels that still read the mask, as cudaFree does. The process may
  // be past the end of CUDA.
  ~UploadedBlocks() override {
    try {
      const DeviceScope scope(device_);
      const OutsideCapture outside;
      forget(cudaFree(memory_));
    } catch (const Error&) {
    }
  }
  UploadedBlocks(const UploadedBlocks&) = delete;
  UploadedBlocks& operator=(const UploadedBlocks&) = delete;

 private:
  int device_;
  void* memory_ = nullptr;
};

}  // namespace

core::BlockView device_blocks(const BlockMask& mask, int device) {
  if (!mask) return {};
  return mask.data()->copies.on(Device::cuda(device), [&]() -> std::unique_ptr<core::DeviceBlocks> {
    if (const std::string reason = unusable(device); !reason.empty()) {
      core::fail(ErrorCode::unsupported, reason);
    }
    return std::make_unique<UploadedBlocks>(*mask.data(), core::view(mask), device);
  });
}

#else

core::BlockView device_blocks(const BlockMask& mask, int device) {
  if (!mask) return {};
  core::fail(ErrorCode::unsupported, unusable(device));
}

#endif

}  // namespace tessera::cuda
