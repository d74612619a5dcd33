#include "lab/baselines/baseline.h"

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::lab {

std::unique_ptr<Baseline> make_baseline(const std::string& name) {
  if (name == "linformer") return make_linformer();
  if (name == "minimal") return make_minimal();
  throw UsageError(fmt::format("baseline '{}': must be linformer or minimal", name));
}

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::unsupported, fmt::format("the baseline {} {}", name, what));
}

}  // namespace

void require_plain(const std::string& name, const Workload& workload) {
  const Point& p = workload.point();
  if (mask_text(p) != "full") refuse(name, fmt::format("knows no masks; this one is {}", mask_text(p)));
  if (kv_heads(p) != p.heads || value_dim(p) != p.dim)
    refuse(name, "needs as many key heads and value dimensions as of q");
  if (p.bias || p.alibi || p.softcap > 0 || p.dropout > 0)
    refuse(name, "knows no bias, ALiBi, softcap or dropout");
}

void require_fp32_on_cpu(const std::string& name, const Workload& workload, const Tensors& tensors) {
  const DType dtype = workload.point().dtype;
  if (tensors.forward().q.device.type != DeviceType::cpu) refuse(name, "runs on the CPU alone");
  if (dtype != DType::fp32)
    refuse(name, fmt::format("computes in fp32 on the CPU, not in {}", tessera::name(dtype)));
}

}  // namespace tessera::lab
