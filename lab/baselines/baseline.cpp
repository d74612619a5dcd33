#include "lab/baselines/baseline.h"

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::lab {

std::unique_ptr<Baseline> make_baseline(const std::string& name) {
  if (name == "linformer") return make_linformer();
  if (name == "minimal") return make_minimal();
  throw UsageError(fmt::format("baseline '{}': must be linformer or minimal", name));
}

void require_plain_fp32(const std::string& name, const Workload& workload, const Tensors& tensors) {
  const Point& p = workload.point();
  auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::unsupported, fmt::format("the baseline {} {}", name, what));
  };
  if (tensors.forward().q.device.type != DeviceType::cpu) refuse("runs on the CPU alone");
  if (p.dtype != DType::fp32) refuse(fmt::format("computes in fp32, not in {}", tessera::name(p.dtype)));
  if (mask_text(p) != "full") refuse(fmt::format("knows no masks; this one is {}", mask_text(p)));
  if (kv_heads(p) != p.heads || value_dim(p) != p.dim)
    refuse("needs as many key heads and value dimensions as of q");
  if (p.bias || p.alibi || p.softcap > 0 || p.dropout > 0) refuse("knows no bias, ALiBi, softcap or dropout");
}

}  // namespace tessera::lab
