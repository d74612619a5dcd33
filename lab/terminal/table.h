// A table for the terminal. Widths are known before the first row, so that rows can be printed as
// they come.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::lab {

// Cells per line: what the terminal has; else COLUMNS where the environment says it; else 120. At
// least 40.
std::size_t line_width();

enum class Justify { left, right };

struct Column {
  std::string header;
  std::size_t width = 0;  // at least the header's
  Justify justify = Justify::right;
};

// The number of terminal cells of a UTF-8 text without control sequences; every character counts as
// one.
std::size_t display_width(std::string_view text);

// `text` filled up with blanks to `width`; longer text stays as it is.
std::string pad(std::string_view text, std::size_t width, Justify justify);

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // Makes columns wide enough for this row. Call before the header is printed.
  void fit(const std::vector<std::string>& cells);

  // Headers and the rule below them, and one row; each line ends with a newline and no blanks
  // before it. A row may have fewer cells than there are columns: the last one then runs free.
  [[nodiscard]] std::string header() const;
  [[nodiscard]] std::string row(const std::vector<std::string>& cells) const;

  // Where a column starts, and how wide a full line is, in terminal cells.
  [[nodiscard]] std::size_t offset(std::size_t column) const;
  [[nodiscard]] std::size_t width() const;

 private:
  std::vector<Column> columns_;
};

// A whole table at once: columns as wide as what they hold.
std::string render(std::vector<Column> columns, const std::vector<std::vector<std::string>>& rows);

// The same as a Markdown table.
std::string render_markdown(const std::vector<Column>& columns,
                            const std::vector<std::vector<std::string>>& rows);

// `text` broken at blanks into lines that end before `width`, each starting at `indent`: the first
// one where the caller has already printed that much.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent);

}  // namespace tessera::lab
