// Names of enumerators, the version, and the error type.
#include "tessera/attention.h"
#include "tessera/error.h"
#include "tessera/execution.h"
#include "tessera/tensor.h"
#include "tessera/version.h"

#define TESSERA_STRING_OF(x) #x
#define TESSERA_STRING(x) TESSERA_STRING_OF(x)

namespace tessera {

const char* version() noexcept {
  return TESSERA_STRING(TESSERA_VERSION_MAJOR) "." TESSERA_STRING(TESSERA_VERSION_MINOR) "." TESSERA_STRING(
      TESSERA_VERSION_PATCH);
}

Error::Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

Executor::~Executor() = default;
Allocator::~Allocator() = default;

const char* name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::device_failure: return "device_failure";
  }
  return "unknown";
}

const char* name(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp64: return "fp64";
    case DType::fp32: return "fp32";
    case DType::fp16: return "fp16";
    case DType::bf16: return "bf16";
  }
  return "unknown";
}

const char* name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::automatic: return "automatic";
    case Algorithm::standard: return "standard";
    case Algorithm::flash1: return "flash1";
    case Algorithm::flash2: return "flash2";
    case Algorithm::flash3: return "flash3";
    case Algorithm::minimal: return "minimal";
  }
  return "unknown";
}

const char* name(Direction direction) noexcept {
  return direction == Direction::forward ? "forward" : "backward";
}

}  // namespace tessera
