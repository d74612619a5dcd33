#include "lab/terminal/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>

namespace tessera::lab {
namespace {

volatile std::sig_atomic_t caught_signal = 0;

void remember_signal(int signal) { caught_signal = signal; }

}  // namespace

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) != 0; }

std::size_t terminal_width(std::FILE* stream) {
  winsize size{};
  const bool known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

bool use_color(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::strcmp(terminal, "dumb") == 0;
  return is_terminal(stream) && !dumb && (no_color == nullptr || *no_color == '\0');
}

std::string colored(const std::string& text, Color color, bool enabled) {
  if (!enabled) return text;
  const char* code = "";
  switch (color) {
    case Color::green: code = "32"; break;
    case Color::red: code = "31"; break;
    case Color::yellow: code = "33"; break;
    case Color::dim: code = "2"; break;
    case Color::bold: code = "1"; break;
  }
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = remember_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // also when whoever started us ignores it
}

int interrupted() { return caught_signal; }

int report_interrupt(const std::string& command) {
  fmt::print(stderr, "{}: interrupted\n", command);
  return 128 + interrupted();
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = value;
    return locale.find("UTF-8") != std::string::npos || locale.find("utf8") != std::string::npos ||
           locale.find("UTF8") != std::string::npos || locale.find("utf-8") != std::string::npos;
  }
  return false;
}

std::string in_ascii(const std::string& text) {
  static const std::map<std::string, char> kPlain = {
      {"\u2500", '-'}, {"\u2501", '-'}, {"\u2502", '|'}, {"\u00d7", 'x'}, {"\u00b5", 'u'}, {"\u03bc", 'u'},
      {"\u2713", '+'}, {"\u2717", 'x'}, {"\u2013", '-'}, {"\u2014", '-'}, {"\u2212", '-'}, {"\u2026", '.'},
      {"\u2588", '#'}, {"\u2593", '='}, {"\u2592", '+'}, {"\u2591", '.'}, {"\u2192", '>'}, {"\u00b7", '.'},
      {"\u0398", 'O'}, {"\u00b2", '2'}, {"\u2248", '~'}, {"\u2264", '<'}, {"\u2265", '>'}};
  std::string plain;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    const std::string character = text.substr(begin, end - begin);
    const auto known = kPlain.find(character);
    if (character.size() == 1) plain += character;
    else plain += known == kPlain.end() ? '?' : known->second;
    begin = end;
  }
  return plain;
}

void print(const std::string& unicode) {
  static const bool kUtf8 = is_utf8_locale();
  const std::string text = kUtf8 ? unicode : in_ascii(unicode);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw OutputError(fmt::format("cannot write standard output: {}", std::strerror(errno)));
  }
}

}  // namespace tessera::lab
