// What answers are computed from: the rows of an experiment, selected, paired and put into curves.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/report/figure/rows.h"
#include "lab/report/model.h"
#include "lab/report/words/answers.h"
#include "lab/report/words/wording.h"

namespace tessera::lab::report {

// Two rows of the same point that differ in one field, and what each measured.
struct RowPair {
  const nlohmann::json *a, *b;
  Mark value, base;

  [[nodiscard]] Verdict verdict() const { return compare(value, base); }
  [[nodiscard]] double ratio() const { return *value.y / *base.y; }
};

// Fields and the values that rows must have.
using Where = std::vector<std::pair<std::string, std::string>>;

class Evidence {
 public:
  explicit Evidence(Rows rows) : rows_(std::move(rows)) {}

  // Of a temporary by value, so that a loop over `all.with(…).rows()` keeps them.
  [[nodiscard]] const Rows& rows() const& { return rows_; }
  [[nodiscard]] Rows rows() && { return std::move(rows_); }
  [[nodiscard]] Evidence with(const Where& where) const;
  [[nodiscard]] Evidence measured() const;

  // The exact algorithm of the library that this run measured: the newest.
  [[nodiscard]] std::string ours() const;

  // The rows with `of` = `a` and those with `of` = `b`, point by point, ascending in `order`.
  [[nodiscard]] std::vector<RowPair> pairs(const std::string& of, const std::string& a, const std::string& b,
                                           const std::string& field, const std::string& order) const;

  // One curve of a field over another. Of several rows at one place the first counts.
  [[nodiscard]] std::pair<Axis, Series> curve(const std::string& x, const std::string& y) const;

 private:
  Rows rows_;
};

// "N = 512" of a row.
std::string place_of(const nlohmann::json& row, const std::string& field);

// "12.3 ms", "2.88 MiB" of a value in the unit of the row.
std::string text_of(const std::string& field, double value);

// "1.2 to 1.9", or "1.2" where two digits do not tell them apart.
std::string range_text(std::vector<double> values);

double median_of(std::vector<double> values);

// A curve for a small chart, in the colour of its method.
SmallChart::Curve small_curve(const Evidence& evidence, const std::string& method, const std::string& x,
                              const std::string& y);
SmallChart::Curve small_bar(const std::string& name, double value, std::size_t place = 0);

// Experiments of `python -m tessera.lab`.
Answer training_answer(const Evidence& all);
Answer gpt_answer(const Evidence& all);
Answer peers_answer(const Evidence& all);

}  // namespace tessera::lab::report
