#include "lab/terminal/table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

constexpr std::string_view kGap = "  ";
constexpr std::string_view kRule = "\u2500";
constexpr std::size_t kDefaultWidth = 120, kLeastWidth = 40;

void strip_trailing_blanks(std::string& line) {
  while (!line.empty() && line.back() == ' ') line.pop_back();
}

}  // namespace

std::size_t line_width() {
  if (is_terminal(stdout)) return std::max(terminal_width(stdout), kLeastWidth);
  const char* columns = std::getenv("COLUMNS");
  const long asked = columns == nullptr ? 0 : std::strtol(columns, nullptr, 10);
  return asked > 0 ? std::max(static_cast<std::size_t>(asked), kLeastWidth) : kDefaultWidth;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string pad(std::string_view text, std::size_t width, Justify justify) {
  const std::size_t used = display_width(text);
  const std::string blanks(width > used ? width - used : 0, ' ');
  return justify == Justify::left ? std::string(text) + blanks : blanks + std::string(text);
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) column.width = std::max(column.width, display_width(column.header));
}

void Table::fit(const std::vector<std::string>& cells) {
  for (std::size_t i = 0; i < cells.size() && i < columns_.size(); ++i) {
    columns_[i].width = std::max(columns_[i].width, display_width(cells[i]));
  }
}

std::string Table::header() const {
  std::vector<std::string> names;
  std::string rule;
  for (const Column& column : columns_) {
    names.push_back(column.header);
    if (!rule.empty()) rule += kGap;
    for (std::size_t i = 0; i < column.width; ++i) rule += kRule;
  }
  return row(names) + rule + "\n";
}

std::string Table::row(const std::vector<std::string>& cells) const {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += kGap;
    const bool runs_free = i + 1 == cells.size() && cells.size() < columns_.size();
    line +=
        runs_free || i >= columns_.size() ? cells[i] : pad(cells[i], columns_[i].width, columns_[i].justify);
  }
  strip_trailing_blanks(line);
  return line + "\n";
}

std::size_t Table::offset(std::size_t column) const {
  std::size_t total = kGap.size() * column;
  for (std::size_t i = 0; i < column && i < columns_.size(); ++i) total += columns_[i].width;
  return total;
}

std::size_t Table::width() const {
  std::size_t total = columns_.empty() ? 0 : kGap.size() * (columns_.size() - 1);
  for (const Column& column : columns_) total += column.width;
  return total;
}

std::string render(std::vector<Column> columns, const std::vector<std::vector<std::string>>& rows) {
  Table table(std::move(columns));
  for (const auto& cells : rows) table.fit(cells);
  std::string text = table.header();
  for (const auto& cells : rows) text += table.row(cells);
  return text;
}

std::string render_markdown(const std::vector<Column>& columns,
                            const std::vector<std::vector<std::string>>& rows) {
  std::string text = "|", rule = "|";
  for (const Column& column : columns) {
    text += " " + column.header + " |";
    rule += column.justify == Justify::left ? "---|" : "---:|";
  }
  text += "\n" + rule + "\n";
  for (const auto& cells : rows) {
    text += "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    text += "\n";
  }
  return text;
}

std::string wrap(std::string_view text, std::size_t width, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const std::size_t length = display_width(word);
    if (column > indent && column + 1 + length > width) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += length;
  }
  return result;
}

}  // namespace tessera::lab
