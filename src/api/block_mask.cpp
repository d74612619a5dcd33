// What block masks need from the devices they are used on.
#include "cuda/common/host/block_mask.h"
#include "api/tensor_checks.h"
#include "core/base/out_of_memory.h"
#include "tessera/mask.h"

namespace tessera {

void BlockMask::prepare(Device device) const {
  core::guarded([&] {
    if (device.type > DeviceType::cuda) {
      core::refuse("device.type is ", static_cast<int>(device.type), "; it must be cpu or cuda");
    }
    if (device.index < 0) core::refuse("device.index is ", device.index, "; it must not be negative");
    if (device.type == DeviceType::cuda) cuda::device_blocks(*this, device.index);
  });
}

}  // namespace tessera
