// What the command talks to: a terminal or a pipe, with or without colour; and Ctrl-C.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "lab/terminal/errors.h"

namespace tessera::lab {

bool is_terminal(std::FILE* stream);

// Cells per line of a terminal; 80 when it does not say.
std::size_t terminal_width(std::FILE* stream);

// True for a terminal that understands colour, unless NO_COLOR is set (https://no-color.org).
bool use_color(std::FILE* stream);

enum class Color { green, red, yellow, dim, bold };

// `text` in a colour, or as it is when `enabled` is false.
std::string colored(const std::string& text, Color color, bool enabled);

// After this the first SIGINT or SIGTERM only sets what `interrupted` returns, so that finished
// rows can be kept; a second one ends the process. A reader that closes our pipe ends it quietly.
void install_signal_handlers();

// The number of the signal that came, or 0.
int interrupted();

// Says "interrupted" on standard error and returns the exit code for the signal that came.
int report_interrupt(const std::string& command);

// Whether the environment (LC_ALL, LC_CTYPE, LANG: the first that is set) asks for UTF-8.
bool is_utf8_locale();

// The text in ASCII, one character for one, so that tables keep their shape: "-" for a rule, "u"
// for µ, "x" for ×.
std::string in_ascii(const std::string& text);

// Writes text to standard output at once, so that rows appear when they are finished; in a
// locale without UTF-8 as ASCII. Throws OutputError.
void print(const std::string& text);

}  // namespace tessera::lab
