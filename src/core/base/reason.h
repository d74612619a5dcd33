// Why not: the words behind a verdict, made only where somebody reads them.
#pragma once

#include <optional>
#include <string>

#include "core/base/text.h"

namespace tessera::core {

// A function that decides returns true when something is in the way, and takes a Reason:
//
//   bool limits(const Problem& p, Reason reason) {
//     return p.q_length > kMost && reason.give("supports at most ", kMost, " queries; this call has ", p.q_length);
//   }
//
// A call passes Reason{}: nothing is formatted or allocated. Plans and errors pass a text. Parts of a reason must
// therefore cost nothing by themselves: numbers, text that exists, types with an operator<<.
class Reason {
 public:
  // Nobody reads.
  Reason() = default;

  // The words are appended to `text`, after a semicolon where it is not empty.
  explicit Reason(std::string& text) : text_(&text) {}

  // Gives a reason. Always true.
  template <typename... Parts>
  bool give(const Parts&... parts) const {  // NOLINT(modernize-use-nodiscard): it is called for its words too
    if (text_ != nullptr) *text_ += concat(text_->empty() ? "" : "; ", parts...);
    return true;
  }

  // The same for a function that returns an optional:
  //
  //   if (p.k_tokens == 0) return reason.decline("requires at least one key");
  template <typename... Parts>
  std::nullopt_t decline(const Parts&... parts) const {
    give(parts...);
    return std::nullopt;
  }

 private:
  std::string* text_ = nullptr;
};

}  // namespace tessera::core
