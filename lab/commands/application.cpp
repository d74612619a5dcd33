#include "lab/commands/application.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/commands/parse.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "tessera/error.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongArguments = 2;

// CLI11's layout with our usage line.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(26); }

  std::string make_footer(const CLI::App* /*app*/) const override { return {}; }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    const bool top = app->get_parent() == nullptr;
    return fmt::format("\nUsage: {} {}\n", top ? "tessera" : name, top ? "COMMAND [OPTIONS]" : "[OPTIONS]");
  }
};

// Messages of the library may list reasons on lines of their own; errors are one line.
int complain(const std::string& command, const std::string& text, int code) {
  fmt::print(stderr, "{}: {}\n", command, one_line(text));
  return code;
}

// "tessera bench" once a subcommand is known.
std::string command_name(const CLI::App& application) {
  const auto chosen = application.get_subcommands();
  return chosen.empty() ? "tessera" : "tessera " + chosen.front()->get_name();
}

std::vector<std::string> subcommand_names(const CLI::App& application) {
  std::vector<std::string> names;
  for (const CLI::App* command : application.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

// The whole help text. One blank line between groups, where some versions of CLI11 leave two; and
// the footer as it was written, where newer ones would fill its lines into paragraphs.
std::string help_text(const CLI::App& command) {
  std::string text = command.help(command.get_parent() == nullptr ? "" : "tessera");
  for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text + "\n\n" + command.get_footer() + "\n";
}

// Refuses words that no command knows, and names the nearest known one.
void refuse_unknown(const CLI::App& application) {
  const auto chosen = application.get_subcommands();
  const CLI::App& command = chosen.empty() ? application : *chosen.front();
  std::vector<std::string> unknown = application.remaining();
  if (!chosen.empty()) {
    for (const std::string& word : command.remaining()) unknown.push_back(word);
  }
  if (unknown.empty()) return;
  const std::string& word = unknown.front();
  const bool option = word.rfind('-', 0) == 0;
  if (chosen.empty() && !option) {
    const std::vector<std::string> names = subcommand_names(application);
    const std::string meant = nearest(word, names);
    throw UsageError(fmt::format("unknown command '{}'; {}the commands are {}", word,
                                 meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                 fmt::join(names, ", ")));
  }
  if (!option)
    throw UsageError(fmt::format("unexpected argument '{}'; see {} --help", word, command_name(application)));
  std::vector<std::string> known;
  for (const CLI::Option* candidate : command.get_options()) known.push_back(candidate->get_name());
  const std::string meant = nearest(word.substr(0, word.find('=')), known);
  throw UsageError(fmt::format("unknown option '{}'; {} {} --help", word,
                               meant.empty() ? "see" : fmt::format("did you mean {}? See", meant),
                               command_name(application)));
}

void declare(CLI::App& application, Action& action) {
  application.formatter(std::make_shared<HelpFormatter>());
  application.set_version_flag("--version", fmt::format("tessera {}", version()),
                               "Print the version and exit");
  application.set_help_flag("-h,--help", "Print this help and exit");
  application.allow_extras();
  application.require_subcommand(0, 1);  // a second name is an argument of the first: "man bench"
  application.footer(
      "Start with\n"
      "  tessera info                                  show the build, the devices and their kernels\n"
      "  tessera verify                                check every kernel on this machine\n"
      "  tessera explain --seq 4096 --causal           show which kernel would run and what it costs\n"
      "  tessera bench --seq 512..4096 --causal        measure the algorithms\n"
      "  tessera lab --quick                           run every experiment in small sizes\n"
      "  tessera report lab-results                    draw the page of the results\n"
      "  tessera peak                                  measure what the machine can reach\n\n"
      "tessera COMMAND --help lists a command's options.\n"
      "Exit codes: 0 done, 1 something failed, 2 wrong arguments, 130 interrupted.");
  add_info(application, action);
  add_explain(application, action);
  add_bench(application, action);
  add_lab(application, action);
  add_peak(application, action);
  add_verify(application, action);
  add_report(application, action);
  add_fit(application, action);
  add_completion(application, action);
  add_man(application, action);
}

}  // namespace

int run_application(int argc, const char* const* argv) {
  CLI::App application("Tessera: exact attention, forward and backward, computed tile by tile.", "tessera");
  Action action;
  try {
    declare(application, action);
    application.parse(argc, argv);
    refuse_unknown(application);
    if (!action) {
      throw UsageError(fmt::format("needs a command, one of {}; see tessera --help",
                                   fmt::join(subcommand_names(application), ", ")));
    }
    return action();
  } catch (const CLI::CallForHelp&) {
    const auto chosen = application.get_subcommands();
    print(help_text(chosen.empty() ? application : *chosen.front()));
    return 0;
  } catch (const CLI::CallForVersion& request) {
    print(std::string(request.what()) + "\n");
    return 0;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();  // "--seq: 1 required TEXT missing"
    const std::string option = text.substr(0, text.find(':'));
    const std::string command = command_name(application);
    return complain(command, fmt::format("{}: needs a value; see {} --help", option, command),
                    kWrongArguments);
  } catch (const CLI::ParseError& error) {
    return complain(command_name(application), error.what(), kWrongArguments);
  } catch (const UsageError& error) {
    return complain(command_name(application), error.what(), kWrongArguments);
  } catch (const Error& error) {
    const bool wrong = error.code() == ErrorCode::invalid_argument;
    return complain(command_name(application), error.what(), wrong ? kWrongArguments : kFailed);
  } catch (const std::bad_alloc&) {
    return complain(command_name(application), "out of memory", kFailed);
  } catch (const std::exception& error) {
    return complain(command_name(application), error.what(), kFailed);
  }
}

}  // namespace tessera::lab
