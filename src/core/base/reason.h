// The reason why a kernel cannot support a problem, formatted only where somebody reads it.
#pragma once

#include <string>

#include "core/base/text.h"

namespace tessera::core {

// A function that decides takes a Reason and returns true when something is in the way:
//
//   bool limits(const Problem& p, Reason reason) {
//     return p.q_length > kMost &&
//            reason.give("supports at most ", kMost, " queries; this call has ", p.q_length);
//   }
//
// A call passes Reason{}: nothing is formatted or allocated. Plans and errors pass a text. The
// parts of a reason must therefore be free to pass: numbers, existing text, types with an
// operator<<.
class Reason {
 public:
  // Nobody reads.
  Reason() = default;

  // The words are appended to `text`, after a comma where it is not empty.
  explicit Reason(std::string& text) : text_(&text) {}

  // Gives a reason. Always returns true.
  template <typename... Parts>
  bool give(const Parts&... parts) const {  // NOLINT(modernize-use-nodiscard): it is called for its words too
    if (text_ != nullptr) *text_ += concat(text_->empty() ? "" : ", ", parts...);
    return true;
  }

 private:
  std::string* text_ = nullptr;
};

}  // namespace tessera::core
