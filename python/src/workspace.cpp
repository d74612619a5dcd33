#include "workspace.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>

namespace tessera::python {

LibraryWorkspace::~LibraryWorkspace() { release(); }

void* LibraryWorkspace::allocate(std::size_t bytes, std::size_t alignment, void* /*stream*/) {
  // On the CPU a library's own alignment is smaller than requested.
  std::size_t space = bytes + alignment - 1;
  auto length = static_cast<std::int64_t>(space);
  dlpack::Tensor requested{.data = nullptr,
                           .device = device_,
                           .ndim = 1,
                           .dtype = {dlpack::kUInt, 8, 1},
                           .shape = &length,
                           .strides = nullptr,
                           .byte_offset = 0};
  auto keep_refusal = [](void* text, const char* /*kind*/, const char* message) {
    try {  // the caller is C
      const std::string_view all = message != nullptr ? message : "";
      *static_cast<std::string*>(text) = all.substr(0, all.find('\n'));
    } catch (const std::exception&) {
    }
  };
  release();
  refusal_.clear();
  if (exchange_.allocate(&requested, &held_, &refusal_, keep_refusal) != 0) held_ = nullptr;
  if (held_ == nullptr) return nullptr;
  void* data = static_cast<char*>(held_->tensor.data) + held_->tensor.byte_offset;
  return std::align(alignment, bytes, data, space);
}

void LibraryWorkspace::deallocate(void* /*data*/, std::size_t /*bytes*/, std::size_t /*alignment*/,
                                  void* /*stream*/) {
  release();
}

void LibraryWorkspace::release() {
  if (held_ != nullptr && held_->deleter != nullptr) held_->deleter(held_);
  held_ = nullptr;
}

}  // namespace tessera::python
