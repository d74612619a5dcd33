// Names of enumerators and texts of values, the version, and the error type.
#include <ostream>

#include "core/base/out_of_memory.h"
#include "core/base/refuse.h"
#include "core/base/text.h"
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
    case DType::boolean: return "bool";
  }
  return "unknown";
}

const char* name(DeviceType type) noexcept {
  switch (type) {
    case DeviceType::cpu: return "cpu";
    case DeviceType::cuda: return "cuda";
  }
  return "unknown";
}

const char* name(Align align) noexcept {
  switch (align) {
    case Align::bottom_right: return "bottom_right";
    case Align::top_left: return "top_left";
  }
  return "unknown";
}

const char* name(TensorRole role) noexcept {
  switch (role) {
    case TensorRole::tokens: return "tokens";
    case TensorRole::lse: return "lse";
    case TensorRole::bias: return "bias";
    case TensorRole::visible: return "visible";
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
  switch (direction) {
    case Direction::forward: return "forward";
    case Direction::backward: return "backward";
  }
  return "unknown";
}

std::string to_string(Device device) {
  return core::guarded([&] {
    if (device.type == DeviceType::cpu) return std::string("cpu");
    return core::concat(device.type, ":", device.index);
  });
}

std::ostream& operator<<(std::ostream& stream, Algorithm value) { return stream << name(value); }
std::ostream& operator<<(std::ostream& stream, Align value) { return stream << name(value); }
std::ostream& operator<<(std::ostream& stream, Device value) { return stream << to_string(value); }
std::ostream& operator<<(std::ostream& stream, DeviceType value) { return stream << name(value); }
std::ostream& operator<<(std::ostream& stream, Direction value) { return stream << name(value); }
std::ostream& operator<<(std::ostream& stream, DType value) { return stream << name(value); }
std::ostream& operator<<(std::ostream& stream, ErrorCode value) { return stream << name(value); }
std::ostream& operator<<(std::ostream& stream, TensorRole value) { return stream << name(value); }

}  // namespace tessera
