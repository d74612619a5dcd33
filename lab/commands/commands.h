// The subcommands of `tessera`. Each has its own file and declares itself on the application;
// a new one adds a function here and a line in application.cpp.
#pragma once

#include <functional>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace tessera::lab {

// Runs the chosen subcommand; returns the exit code.
using Action = std::function<int()>;

void add_info(CLI::App& application, Action& action);
void add_explain(CLI::App& application, Action& action);
void add_bench(CLI::App& application, Action& action);
void add_lab(CLI::App& application, Action& action);
void add_peak(CLI::App& application, Action& action);
void add_verify(CLI::App& application, Action& action);
void add_report(CLI::App& application, Action& action);
void add_fit(CLI::App& application, Action& action);
void add_completion(CLI::App& application, Action& action);
void add_man(CLI::App& application, Action& action);

}  // namespace tessera::lab
