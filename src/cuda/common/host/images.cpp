#include "cuda/common/host/images.h"

#include <charconv>

#include "build_config.h"

namespace tessera::cuda {

Image image_for(std::string_view architectures, int capability) {
  Image best;
  while (!architectures.empty()) {
    const std::string_view entry = architectures.substr(0, architectures.find(';'));
    architectures.remove_prefix(entry.size() < architectures.size() ? entry.size() + 1 : entry.size());
    int own = 0;
    const char* const end = std::from_chars(entry.data(), entry.data() + entry.size(), own).ptr;
    const std::string_view rest = entry.substr(static_cast<std::size_t>(end - entry.data()));
    const bool alone = rest.substr(0, 1) == "a";  // 90a: for 9.0 and nothing else
    const bool machine_code = rest.find("virtual") == std::string_view::npos;
    const bool ptx = rest.find("real") == std::string_view::npos && !alone;
    if (own == 0 || own > capability || (alone && own != capability)) continue;
    const bool same_major = own / 10 == capability / 10;
    if (machine_code && same_major && (best.capability == 0 || best.ptx || own > best.capability)) {
      best = {own, false};
    } else if (ptx && (best.capability == 0 || (best.ptx && own > best.capability))) {
      best = {own, true};
    }
  }
  return best;
}

std::string_view architectures_of(Code code) {
  switch (code) {
    case Code::any: return TESSERA_CUDA_ANY_ARCHITECTURES;
    case Code::sm75: return TESSERA_CUDA_SM75_ARCHITECTURES;
    case Code::from80: return TESSERA_CUDA_FROM80_ARCHITECTURES;
    case Code::sm90: return TESSERA_CUDA_SM90_ARCHITECTURES;
  }
  return {};
}

}  // namespace tessera::cuda
