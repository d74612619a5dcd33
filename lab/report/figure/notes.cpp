#include "lab/report/figure/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lab/report/figure/fields.h"
#include "lab/report/words/wording.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestReason = 120;

std::string status_text(const std::string& status) {
  if (status == "out_of_memory") return "out of memory";
  if (status == "no_value") return "nothing recorded";
  return status;
}

}  // namespace

std::string short_reason(const std::string& reason) {
  std::string text = reason.substr(0, reason.find("; "));
  if (text.size() <= kLongestReason) return text;
  std::size_t end = text.rfind(' ', kLongestReason);
  if (end == std::string::npos || end == 0) {
    end = kLongestReason;
    while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a character
  }
  return text.substr(0, end) + " …";
}

void note_empty_column(DrawnFigure& figure, const Quantity& quantity, const Rows& rows) {
  const bool empty = std::none_of(
      rows.begin(), rows.end(), [&](const json* row) { return number_of(*row, quantity.field).has_value(); });
  if (!empty) return;
  const json why =
      field_value(*rows.front(), quantity.field.substr(0, quantity.field.rfind("_bytes")) + "_note");
  figure.notes.push_back(
      fmt::format("{}: {}", quantity.label,
                  why.is_string() ? short_reason(why.get<std::string>()) : "no row has a value"));
}

void add_notes(DrawnFigure& figure) {
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;  // the note; whom it is about
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      std::map<std::string, std::vector<const Mark*>> missing;
      for (const Mark& mark : series.marks) {
        if (!mark.y) missing[mark.status].push_back(&mark);
      }
      for (const auto& [status, marks] : missing) {
        std::vector<std::string> places;
        for (const Mark* mark : marks) places.push_back(figure.x.labels[mark->x]);
        std::string note = status_text(status);
        if (marks.size() < series.marks.size()) {
          note += figure.x.numeric ? fmt::format(" at {} = ", figure.x.quantity.symbol) : " for ";
          note += listed(places);
        }
        if (const std::string& reason = marks.front()->reason; !reason.empty())
          note += fmt::format(" ({})", short_reason(reason));
        auto found =
            std::find_if(notes.begin(), notes.end(), [&](const auto& other) { return other.first == note; });
        if (found == notes.end()) found = notes.insert(found, {note, {}});
        found->second.push_back(panel.title.empty() ? series.name
                                                    : fmt::format("{} ({})", series.name, panel.title));
      }
    }
  }
  for (const auto& [note, names] : notes) figure.notes.push_back(fmt::format("{}: {}", listed(names), note));

  std::vector<std::string> twins;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      if (series.twin.empty()) continue;
      std::string text = fmt::format("{} and {}", series.twin, series.name);
      if (std::find(twins.begin(), twins.end(), text) == twins.end()) twins.push_back(std::move(text));
    }
  }
  if (!twins.empty()) {
    figure.notes.push_back(
        fmt::format("Curves that coincide to 1 %, the second one dashed over the first: {}.",
                    fmt::format("{}", fmt::join(twins, "; "))));
  }
}

}  // namespace tessera::lab::report
