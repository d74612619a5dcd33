#include "lab/terminal/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"

namespace tessera::lab {
namespace {

constexpr std::chrono::milliseconds kRewriteEvery{100};
constexpr std::chrono::seconds kPlainLineEvery{10};

// The first `width` characters of a UTF-8 text.
std::string cut(const std::string& text, std::size_t width) {
  if (display_width(text) <= width) return text;
  std::size_t end = 0;
  for (std::size_t cells = 0; end < text.size(); ++end) {
    const bool starts = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (starts && cells++ == width) break;
  }
  return text.substr(0, end);
}

}  // namespace

std::string progress_text(const std::string& what, double share, double elapsed_seconds) {
  share = std::clamp(share, 0.0, 1.0);
  std::string text = fmt::format("[{:3.0f}%] {}", share * 100, what);
  if (share > 0.02 && elapsed_seconds > 1) {
    text += fmt::format(" ({} left)", clock_text(elapsed_seconds / share * (1 - share)));
  }
  return text;
}

Progress::Progress(std::FILE* stream)
    : stream_(stream), rewrites_(is_terminal(stream)), start_(Clock::now()), last_(start_) {
  if (rewrites_) last_ -= kRewriteEvery;
}

Progress::~Progress() { clear(); }

void Progress::show(const std::string& what, double share) {
  const Clock::time_point now = Clock::now();
  const Clock::duration pause = rewrites_ ? Clock::duration(kRewriteEvery) : kPlainLineEvery;
  if (now - last_ < pause) return;
  last_ = now;
  const std::string text = progress_text(what, share, std::chrono::duration<double>(now - start_).count());
  if (rewrites_) {
    fmt::print(stream_, "\r\033[K{}", cut(text, terminal_width(stream_) - 1));
    visible_ = true;
  } else {
    fmt::print(stream_, "{}\n", text);
  }
  std::fflush(stream_);
}

void Progress::clear() {
  if (!visible_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  visible_ = false;
  last_ = Clock::now() - kRewriteEvery;
}

}  // namespace tessera::lab
