// Why a kernel does not run a problem, in words that are made only when somebody reads them.
#pragma once

#include <optional>
#include <string>

#include "core/base/text.h"

namespace tessera::core {

// A function that checks a limit takes a Reason and returns true when the limit is exceeded:
//
//   bool length_limit(const Problem& p, Reason reason) {
//     return p.q_length > kMost &&
//            reason.give("supports at most ", kMost, " queries; this call has ", p.q_length);
//   }
//
// The kernel is the subject of the words: "requires ...", "supports at most ...".
//
// A call passes Reason{}: then nothing is formatted or allocated. Plans and errors pass a string.
// The arguments of `give` must therefore cost nothing by themselves: numbers, text that exists,
// types with an operator<<.
class Reason {
 public:
  // Nobody reads the words.
  Reason() = default;

  // Appends the words to `text`, after a semicolon where it is not empty.
  explicit Reason(std::string& text) : text_(&text) {}

  // Gives a reason. Always true.
  template <typename... Parts>
  bool give(const Parts&... parts) const {  // NOLINT(modernize-use-nodiscard): also called as a statement
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
