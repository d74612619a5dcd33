// `tessera completion` and `tessera man`: what the shell completes, and manual pages, both made
// from the options that the commands declare.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/commands/parse.h"
#include "lab/experiments/studies.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

using Words = std::vector<std::string>;

std::vector<const CLI::App*> commands_of(const CLI::App& application) {
  const auto all = application.get_subcommands(nullptr);
  return {all.begin(), all.end()};
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> named;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) named.push_back(option);
  }
  return named;
}

std::string long_name(const CLI::Option& option) { return "--" + option.get_lnames().front(); }

// The words that an option or the arguments of a command may be.
Words values_of(const std::string& command, const std::string& option) {
  static const std::map<std::string, Words> kOptions = {
      {"--dtype", {"fp64", "fp32", "fp16", "bf16"}},
      {"--direction", {"forward", "backward", "both"}},
      {"--algorithm", {"automatic", "standard", "flash1", "flash2", "flash3", "minimal"}},
      {"--device", {"cpu", "cuda"}},
      {"--causal", {"yes", "no"}},
      {"--align", {"bottom_right", "top_left"}}};
  Words words;
  if (option == "--study") {
    for (const Study& study : studies()) words.push_back(study.name);
  } else if (option.empty() && command == "lab") {
    for (const Experiment* experiment : all_experiments()) words.push_back(experiment->name);
  } else if (option.empty() && command == "completion") {
    words = {"bash", "zsh"};
  } else if (const auto found = kOptions.find(option); found != kOptions.end()) {
    words = found->second;
  }
  return words;
}

std::string bash_script(const CLI::App& application) {
  std::string values, words;
  Words names;
  for (const CLI::App* command : commands_of(application)) {
    const std::string name = command->get_name();
    names.push_back(name);
    Words options = {"--help"};
    for (const CLI::Option* option : options_of(*command)) {
      options.push_back(long_name(*option));
      const Words known = values_of(name, options.back());
      if (!known.empty())
        values += fmt::format("    '{} {}') words='{}' ;;\n", name, options.back(), fmt::join(known, " "));
    }
    const Words arguments = values_of(name, "");
    options.insert(options.end(), arguments.begin(), arguments.end());
    words += fmt::format("    {}) words='{}' ;;\n", name, fmt::join(options, " "));
  }
  return fmt::format(
      "# tessera completion bash > ~/.local/share/bash-completion/completions/tessera\n"
      "_tessera() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} words=\n"
      "  [ \"$COMP_CWORD\" -eq 1 ] && words='{}'\n"
      "  [ \"$COMP_CWORD\" -gt 1 ] && case ${{COMP_WORDS[1]}} in\n{}  esac\n"
      "  [ \"$COMP_CWORD\" -gt 2 ] && case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}\" in\n{}  "
      "esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _tessera tessera\n",
      fmt::join(names, " "), words, values);
}

// Text within single quotes and the brackets of _arguments.
std::string zsh_text(std::string text) {
  for (const auto& [from, to] :
       {std::pair{"'", "’"}, std::pair{"[", "("}, std::pair{"]", ")"}, std::pair{":", "\\:"}}) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos;
         at += std::string_view(to).size())
      text.replace(at, 1, to);
  }
  return text;
}

std::string zsh_script(const CLI::App& application) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(application)) {
    const std::string name = command->get_name();
    names += fmt::format("    '{}:{}'\n", name, zsh_text(command->get_description()));
    cases += fmt::format("    {}) _arguments", name);
    for (const CLI::Option* option : options_of(*command)) {
      const std::string one = long_name(*option);
      const Words known = values_of(name, one);
      std::string value;
      if (option->get_expected_max() > 0)
        value = ":value:" + (known.empty() ? "_files" : fmt::format("({})", fmt::join(known, " ")));
      cases += fmt::format(" \\\n      '*{}[{}]{}'", one, zsh_text(option->get_description()), value);
    }
    const Words arguments = values_of(name, "");
    cases += arguments.empty() ? " '*:file:_files' ;;\n"
                               : fmt::format(" '*:name:({})' ;;\n", fmt::join(arguments, " "));
  }
  return fmt::format(
      "#compdef tessera\n"
      "# tessera completion zsh > DIR/_tessera, for a DIR in $fpath\n"
      "_tessera() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
      "  local command=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n"
      "  case $command in\n{}  esac\n"
      "}}\n"
      "_tessera \"$@\"\n",
      names, cases);
}

// Text in troff: no line starts with a control character, and no backslash is an escape.
std::string troff_text(const std::string& text) {
  std::string result;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) result += "\\&";
    result += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    begins = c == '\n';
  }
  return result;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string manual_page(const CLI::App& command, bool top) {
  const std::string title = top ? "tessera" : "tessera-" + command.get_name();
  std::string text = fmt::format(".TH {} 1 \"\" \"tessera {}\"\n.SH NAME\n{} \\- {}\n", upper(title),
                                 version(), troff_text(title), troff_text(command.get_description()));
  text += fmt::format(".SH SYNOPSIS\n.B tessera{}\n[OPTIONS]\n", top ? " COMMAND" : " " + command.get_name());
  if (top) {
    text += ".SH COMMANDS\n";
    for (const CLI::App* one : commands_of(command))
      text += fmt::format(".TP\n.B {}\n{}\n", one->get_name(), troff_text(one->get_description()));
  }
  std::string group;
  text += ".SH OPTIONS\n";
  for (const CLI::Option* option : options_of(command)) {
    if (option->get_group() != group)
      text += fmt::format(".SS {}\n", troff_text(group = option->get_group()));
    const std::string value =
        option->get_option_text().empty() ? "" : " \\fI" + troff_text(option->get_option_text()) + "\\fR";
    text += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", troff_text(long_name(*option)), value,
                        troff_text(option->get_description()));
  }
  return text + fmt::format(".SH DESCRIPTION\n.nf\n{}\n.fi\n", troff_text(command.get_footer()));
}

}  // namespace

void add_completion(CLI::App& application, Action& action) {
  CLI::App* command =
      application.add_subcommand("completion", "Print a script with which bash or zsh completes");
  command->allow_extras();
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash or zsh")->option_text("");
  command->footer(
      "Examples:\n"
      "  tessera completion bash > ~/.local/share/bash-completion/completions/tessera\n"
      "  tessera completion zsh > ~/.zfunc/_tessera");
  command->callback([&application, &action, shell] {
    action = [&application, shell] {
      constexpr std::array<std::string_view, 2> kShells = {"bash", "zsh"};
      const std::vector<std::size_t> chosen = parse_choices("SHELL", *shell, kShells);
      print(chosen.front() == 0 ? bash_script(application) : zsh_script(application));
      return 0;
    };
  });
}

void add_man(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand("man", "Print the manual page of a command");
  command->allow_extras();
  auto name = std::make_shared<std::string>();
  command->add_option("NAME", *name, "Command [tessera itself]")->option_text("");
  command->footer(
      "Examples:\n"
      "  tessera man bench | man -l -\n"
      "  tessera man > /usr/local/share/man/man1/tessera.1");
  command->callback([&application, &action, name] {
    action = [&application, name] {
      if (name->empty()) {
        print(manual_page(application, true));
        return 0;
      }
      Words known;
      for (const CLI::App* one : commands_of(application)) {
        known.push_back(one->get_name());
        if (one->get_name() != *name) continue;
        print(manual_page(*one, false));
        return 0;
      }
      const std::string meant = nearest(*name, known);
      throw UsageError(fmt::format("NAME '{}': {}the commands are {}", *name,
                                   meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                   fmt::join(known, ", ")));
    };
  });
}

}  // namespace tessera::lab
