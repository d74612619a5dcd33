#include "lab/baselines/baseline.h"

#include <fmt/format.h>

#include "lab/terminal/errors.h"
#include "tessera/error.h"

namespace tessera::lab {

std::unique_ptr<Baseline> make_baseline(const std::string& name, const std::string& stage) {
  if (name == "linformer") return make_linformer();
  if (name == "minimal") return make_minimal();
  if (name == "unfused") return make_unfused(stage);
  throw UsageError(fmt::format("baseline '{}': must be linformer, minimal or unfused", name));
}

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::unsupported, fmt::format("the baseline {} {}", name, what));
}

}  // namespace

void require_plain(const std::string& name, const Operation& operation) {
  const Problem& p = operation.problem();
  if (mask_text(p) != "full")
    refuse(name, fmt::format("supports no masks; this problem has {}", mask_text(p)));
  if (kv_heads(p) != p.heads || value_dim(p) != p.dim)
    refuse(name, "requires kv_heads = heads and v_dim = dim");
  if (p.visible || p.bias || p.alibi || p.softcap > 0 || p.dropout > 0)
    refuse(name, "supports no boolean mask, bias, ALiBi, softcap or dropout");
}

void require_fp32_on_cpu(const std::string& name, const Operation& operation, const Tensors& tensors) {
  const DType dtype = operation.problem().dtype;
  if (tensors.forward().q.device.type != DeviceType::cpu) refuse(name, "runs on the CPU only");
  if (dtype != DType::fp32)
    refuse(name, fmt::format("supports fp32 only on the CPU; this problem has {}", tessera::name(dtype)));
}

}  // namespace tessera::lab
